"""Twenty programs written after the eighth set was measured, by somebody who had read no rule, test or guide."""
