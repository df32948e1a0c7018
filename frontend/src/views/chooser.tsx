/** Chooses the recording and those to compare it with; finds its way in thousands of runs. */
import { useRef, useState } from 'preact/hooks';
import type { RecordingSummary } from '../api/types.ts';
import { count, plural } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { fitLabel, runName, statusOf } from '../words/labels.ts';
import { useApp, useDismiss, useTab } from './hooks.ts';
import { Prose } from './prose.tsx';

/** Rows have one height, so that of thousands only those in sight are made. */
const ROW = 54;
const SHOWN = 16;

function matches(item: RecordingSummary, words: string[]): boolean {
  const text = `${item.run} ${item.label ?? ''} ${item.trial ?? ''} ${item.trial_config ?? ''} ${item.host ?? ''} ${item.status} ${item.verdict ?? ''}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

const focusOnce = (element: HTMLElement | null): void => element?.focus();

export function Chooser() {
  const { app, refresh } = useTab();
  const runs = useApp((state) => state.runs);
  const id = useApp((state) => state.id);
  const compare = useApp((state) => state.compare);
  const [open, setOpen] = useState(false);
  const [filter, setFilter] = useState('');
  const [scroll, setScroll] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  useDismiss(open, () => setOpen(false), box);
  const list = runs?.recordings ?? [];
  if (list.length === 0) return null;
  const current = list.find((item) => item.id === id);
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [...list].sort((a, b) => (b.start_ns ?? 0) - (a.start_ns ?? 0)).filter((item) => matches(item, words));
  const first = Math.max(0, Math.min(Math.floor(scroll / ROW) - 3, found.length - SHOWN));
  // What it said when it was well would mislead.
  const trouble = ({ id: of }: RecordingSummary): string | undefined => {
    const found = runs?.problems.find(({ path }) => path.endsWith(of.slice(of.lastIndexOf('/'))));
    return found && `⚠ ${found.message}`;
  };
  const shown = found.slice(first, first + SHOWN);
  return (
    <div class="menu chooser" ref={box}>
      <button type="button" class="pill chooser-button" aria-haspopup="dialog" aria-expanded={open} onClick={() => setOpen(!open)}>
        <bdi class="clip">{current ? runName(current.run) : 'choose a run'}</bdi>
        {current && <bdi class="clip dim">{fitLabel(current)}</bdi>}
        {compare.length > 0 && <span class="count">+{compare.length}</span>}
        <span aria-hidden="true">▾</span>
      </button>
      {open && (
        <div class="popover chooser-list" role="dialog" aria-label="Recordings" onScroll={(event) => setScroll(event.currentTarget.scrollTop)}>
          {list.length > 5 && (
            <input
              type="search"
              placeholder={`Filter ${count(list.length)} recordings`}
              aria-label="Filter recordings"
              value={filter}
              ref={focusOnce}
              onInput={(event) => {
                setFilter(event.currentTarget.value);
                setScroll(0);
              }}
            />
          )}
          <ul style={{ height: `${found.length * ROW}px`, paddingTop: `${first * ROW}px` }}>
            {shown.map((item, i) => (
              <li key={item.id} class={item.id === id ? 'current' : ''} aria-setsize={found.length} aria-posinset={first + i + 1}>
                <button
                  type="button"
                  class="choice"
                  aria-current={item.id === id}
                  onClick={() => {
                    app.choose(item.id);
                    setOpen(false);
                    refresh();
                  }}
                >
                  <span class="choice-head">
                    <b class="clip">
                      <bdi>{runName(item.run)}</bdi>
                    </b>
                    <bdi class="clip dim">{fitLabel(item, true)}</bdi>
                    <span class={`status status-${clean(item.status, 20)}`}>
                      <i aria-hidden="true" />
                      {statusOf(item.status).title}
                    </span>
                  </span>
                  <span class="choice-text clip">
                    <bdi>{clean(trouble(item) ?? item.verdict, 200) || plural(item.steps ?? 0, 'step')}</bdi>
                  </span>
                </button>
                {item.id !== id && (
                  <label class="choice-compare" title="Show its lanes below the chosen run's">
                    <input
                      type="checkbox"
                      checked={compare.includes(item.id)}
                      onChange={(event) => {
                        app.compareWith(item.id, (event.target as HTMLInputElement).checked);
                        refresh();
                      }}
                    />
                    compare
                  </label>
                )}
              </li>
            ))}
          </ul>
          {found.length === 0 && <p class="dim">No recording matches.</p>}
          {runs?.problems.slice(0, 20).map(({ path, message }, i) => (
            <p key={i} class="missing">
              <bdi>{clean(path, 200)}</bdi>{' '}
              <bdi>
                <Prose text={message} />
              </bdi>
            </p>
          ))}
        </div>
      )}
    </div>
  );
}
