"""DINO: without labels, a student predicts what a teacher, the average of earlier students, says of other views."""
