"""The commands, a file each: the only place that parses arguments."""
