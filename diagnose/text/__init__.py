"""Text of users, traces and files, fit to be shown: control characters visible, credentials masked; and progress."""
