"""Everything that people look at: the console while a run trains, its plots, and the HTML report with its figures."""
