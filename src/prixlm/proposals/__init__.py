"""What a run proposed: its tables, the marks of reviewers, and the way into other tools."""
