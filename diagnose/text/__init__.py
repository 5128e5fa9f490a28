"""Text of users, traces and files, made fit to be shown: control characters visible, credentials masked; and progress."""
