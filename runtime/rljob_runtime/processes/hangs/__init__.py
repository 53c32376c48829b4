"""What each process answers when it is asked where it stands: its stacks, and the dock what it holds."""
