"""The Triton programs behind the operators; imported only where one is to run, since they need the triton package."""
