"""What the site of the documentation has beside docs/: pages of rules and changes, and of sources that are linked."""
