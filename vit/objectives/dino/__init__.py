"""DINO: features by which a student tells what a teacher, the average of earlier students, says of other views."""
