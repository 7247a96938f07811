"""Workloads: traces of submitted jobs, read from many formats, generated, sampled, cut and summarised."""
