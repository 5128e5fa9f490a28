"""A Diagnosis in, a string out."""
