"""The site: its pages, and what makes its reference tables and pictures."""
