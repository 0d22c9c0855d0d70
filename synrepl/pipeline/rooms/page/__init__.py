"""Results of jobs as HTML pages for people: one file each, which loads nothing."""
