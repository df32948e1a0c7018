/** What stands beside the overview: the list of all lanes, and the way back from a zoom. */
import { useRef, useState } from 'preact/hooks';
import { groupKey, laneKey, lanesByGroup, seriesRowKey } from '../lanes/layout.ts';
import { clean } from '../math/text.ts';
import { lanesOf } from '../timeline/frame.ts';
import { useApp, useDismiss, useSelect, useTab } from './hooks.ts';
import { Small } from './small.tsx';

/** Buttons for the view: lanes, undo, zoom, find, the whole run. */
export function ViewBar() {
  const { app, timeline } = useTab();
  const view = useApp((state) => state.view);
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  useDismiss(open, () => setOpen(false), box);
  return (
    <div class="viewbar" ref={box}>
      <button type="button" class="small" aria-haspopup="dialog" aria-expanded={open} title="All lanes: show, hide, pin" onClick={() => setOpen(!open)}>
        lanes <span aria-hidden="true">▾</span>
      </button>
      <Small sign="↶" name="Undo zoom" keys="z" disabled={!app.canUndo} onClick={() => app.undo()} />
      <Small sign="−" name="Zoom out" keys="s" disabled={view === null} onClick={() => timeline.zoom(2, undefined, 'jump')} />
      <Small sign="+" name="Zoom in" keys="w" onClick={() => timeline.zoom(0.5, undefined, 'jump')} />
      <Small sign="find" name="Find a lane, run, step or command" keys="Ctrl+K" onClick={() => app.state.set({ finding: true })} />
      <Small sign="⤢" name="Whole run" keys="0" disabled={view === null} onClick={() => app.look(null)} />
      {open && <LaneList most={(box.current?.closest('.timeline')?.clientHeight ?? 0) - 52} />}
    </div>
  );
}

/** Every lane there is, by group, at most so many pixels high: for hands that cannot drag, and for what was hidden or is far away. */
function LaneList({ most }: { most: number }) {
  const { app, timeline } = useTab();
  useSelect(timeline.shape, (shape) => shape.layout);
  const hidden = useApp((state) => state.hidden);
  const pinned = useApp((state) => state.pinned);
  const collapsed = useApp((state) => state.collapsed);
  const [filter, setFilter] = useState('');
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const sources = timeline.sources;
  return (
    <div class="popover lane-list" style={{ maxHeight: `${Math.min(most, 520)}px` }} role="dialog" aria-label="Lanes">
      <input type="search" placeholder="Filter lanes" aria-label="Filter lanes" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
      {sources.flatMap(({ id, label, recording }) =>
        lanesByGroup(lanesOf(recording)).map(({ group, title, closed, lanes }) => {
          const name = `${sources.length > 1 ? `${label} · ` : ''}${title}`;
          const shown = lanes.filter((lane) => words.every((word) => `${name} ${lane.title} ${lane.id}`.toLowerCase().includes(word)));
          if (shown.length === 0) return null;
          const key = groupKey(id, group);
          const folded = collapsed.has(key) !== closed;
          return (
            <section key={key}>
              <h2>
                <bdi>{name}</bdi>
                {group !== 'training' && (
                  <button type="button" class="linklike" aria-expanded={!folded} onClick={() => app.toggle('collapsed', key)}>
                    {folded ? 'unfold' : 'fold'}
                  </button>
                )}
              </h2>
              <ul>
                {shown.map((lane) => {
                  const row = laneKey(id, lane.id);
                  const called = clean(lane.title, 60);
                  return (
                    <li key={row}>
                      <label>
                        <input type="checkbox" checked={!hidden.has(row)} onChange={() => app.toggle('hidden', row)} /> <bdi>{called}</bdi>
                      </label>
                      <button type="button" class="small" aria-pressed={pinned.includes(row)} onClick={() => app.togglePin(row)}>
                        {pinned.includes(row) ? 'unpin' : 'pin'}
                      </button>
                      {lane.series.length > 1 && (
                        <span class="lane-series">
                          {lane.series.map(({ name: series, title }) => {
                            const seriesKey = seriesRowKey(row, series);
                            return (
                              <label key={series}>
                                <input type="checkbox" checked={!hidden.has(seriesKey)} onChange={() => app.toggle('hidden', seriesKey)} /> <bdi>{clean(title, 40)}</bdi>
                              </label>
                            );
                          })}
                        </span>
                      )}
                    </li>
                  );
                })}
              </ul>
            </section>
          );
        }),
      )}
    </div>
  );
}
