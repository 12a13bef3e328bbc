"""Where models are served and how they are asked, what they cost, and how large their windows are."""
