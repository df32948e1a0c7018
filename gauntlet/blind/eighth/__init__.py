"""Twenty programs written after the seventh set was measured, by somebody who had read no rule, test or guide."""
