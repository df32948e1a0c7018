"""Twenty programs written after the fourth set was measured, by somebody who had read no rule, test or guide."""
