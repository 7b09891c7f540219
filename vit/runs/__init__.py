"""What a run leaves behind: folders, checkpoints, record, results, report, pictures, predictions."""
