"""Twenty programs written after the ninth set was measured, by somebody who had read no rule, test or guide."""
