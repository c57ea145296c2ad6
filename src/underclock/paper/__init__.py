"""paper: the whole study of arXiv 2601.08539 on a simulated GPU, beside what the paper reports."""
