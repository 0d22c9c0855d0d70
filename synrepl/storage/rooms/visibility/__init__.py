"""Who may see which event: stored audiences, filters in SQL, pages."""
