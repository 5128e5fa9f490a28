"""What changes share: their type, what a patch is, and models that several of them use."""
