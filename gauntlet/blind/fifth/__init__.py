"""Twenty programs written after the fourth set was measured, by somebody who had read neither rules nor tests nor guides."""
