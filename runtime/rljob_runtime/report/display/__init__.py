"""What the user sees: live terminal and report."""
