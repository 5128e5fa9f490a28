"""Two diagnoses side by side: what differs between two captures or reports, and whether a step became slower."""
