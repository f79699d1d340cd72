"""What if the public rows are a biased sample, or come from another population?"""
