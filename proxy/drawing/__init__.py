"""Tools that pages are drawn with: markup, bars to scale, and how figures are written. Pure: values in, text out."""
