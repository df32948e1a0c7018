"""Twenty programs of common causes, written after the tenth set was measured, by somebody who had read no rule."""
