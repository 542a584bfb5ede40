"""What every run needs: its parts, its counts and its log, its folder, its clock."""
