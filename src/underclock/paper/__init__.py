"""paper: the whole study of arXiv 2601.08539 on a simulated GPU, next to what the paper reports."""
