"""Reading: the text on a picture, letter by letter."""
