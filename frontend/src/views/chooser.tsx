/** The button with the shown run's name: it opens the table of all runs, and goes back to the run. */
import { isTable } from '../api/client.ts';
import { plural } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { fitLabel, runName } from '../words/labels.ts';
import { useApp, useTab } from './hooks.ts';

/** The button with the name of the run; it opens and closes the table of runs. */
export function Chooser() {
  const { app } = useTab();
  const runs = useApp((state) => state.runs);
  const id = useApp((state) => state.id);
  const compare = useApp((state) => state.compare);
  const open = useApp((state) => state.list);
  const list = runs?.recordings ?? [];
  if (list.length === 0 || isTable) return null;
  const current = list.find((item) => item.id === id);
  const hint = open ? 'Back to this run  Esc' : `All runs: ${plural(list.length, 'recording')}  l`;
  return (
    <div class="chooser">
      <button type="button" class="pill chooser-button" aria-expanded={open} title={[current && clean(current.run, 300), hint].filter(Boolean).join('\n')} onClick={() => app.openList(!open)}>
        <bdi class="clip">{current ? runName(current.run) : 'choose a run'}</bdi>
        {current && <bdi class="clip dim">{fitLabel(current)}</bdi>}
        {compare.length > 0 && <span class="count">+{compare.length}</span>}
        <span aria-hidden="true">{open ? '▴' : '▾'}</span>
      </button>
    </div>
  );
}
