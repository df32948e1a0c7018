/** Ctrl+K: finds a lane, a run, a step or a command by its words. */
import { useEffect, useRef, useState } from 'preact/hooks';
import { laneKey, lanesByGroup } from '../lanes/layout.ts';
import { clean } from '../math/text.ts';
import { lanesOf } from '../timeline/frame.ts';
import { copyPicture } from '../timeline/poster.ts';
import { titleOf } from '../words/causes.ts';
import { fitLabel, runName } from '../words/labels.ts';
import { useApp, useTab, type Tab } from './hooks.ts';

interface Entry {
  kind: string;
  name: string;
  keys?: string;
  act: () => void;
}

const MOST = 12;

/** Everything that can be asked for by name; a number is a step. */
export function entriesOf({ app, timeline, refresh }: Tab, text: string): Entry[] {
  const { recording } = app;
  const step = /^\d[\d,]*$/.test(text.trim()) ? Number(text.replace(/\D/g, '')) : null;
  const entries: Entry[] = [];
  if (step !== null) entries.push({ kind: 'step', name: `Go to step ${step.toLocaleString('en')}`, act: () => timeline.goToStep(step) });
  for (const { first } of app.rows) entries.push({ kind: 'finding', name: titleOf(first), act: () => timeline.choose(first.id) });
  for (const { group, title, lanes } of recording ? lanesByGroup(lanesOf(recording)) : [])
    for (const lane of lanes) {
      const act = (): void => timeline.reveal(laneKey(recording?.id ?? '', lane.id), `${recording?.id}#${group}`);
      entries.push({ kind: 'lane', name: `${clean(lane.title, 60)} · ${title}`, act });
    }
  const commands: [string, string, () => void][] = [
    ['Whole run', '0', () => app.look(null)],
    ['Copy the fix', 'c', () => timeline.copyFix()],
    ['Copy picture', '', () => void copyPicture(timeline)],
    ['Time on the axis', '', () => timeline.setAxis('time')],
    ['Steps on the axis', '', () => timeline.setAxis('steps')],
    ['Time of day on the axis', '', () => timeline.setAxis('clock')],
    ['Numbers as tables', 't', () => app.state.set({ tables: !app.state.get().tables })],
    ['All runs', 'l', () => app.openList(true)],
    ['Keys and gestures', '?', () => app.state.set({ help: true })],
  ];
  for (const [name, keys, act] of commands) entries.push({ kind: 'command', name, keys, act });
  for (const item of app.state.get().runs?.recordings ?? [])
    entries.push({
      kind: 'run', name: `${runName(item.run)} · ${fitLabel(item)}`, act: () => {
        app.choose(item.id);
        refresh();
      },
    });
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = step !== null ? entries.slice(0, 1) : entries.filter(({ name, kind }) => words.every((word) => `${kind} ${name}`.toLowerCase().includes(word)));
  return matches.slice(0, MOST);
}

/** The dialog of Ctrl+K: a text that finds lanes, runs, steps and commands; Enter takes the marked one. */
export function Finder() {
  const tab = useTab();
  const open = useApp((state) => state.finding);
  const [text, setText] = useState('');
  const [at, setAt] = useState(0);
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current;
    if (open && element && !element.open) {
      setText('');
      setAt(0);
      element.showModal();
      element.querySelector('input')?.focus();
    }
    if (!open && element?.open) element.close();
  }, [open]);
  const close = (): void => tab.app.state.set({ finding: false });
  const matches = open ? entriesOf(tab, text) : [];
  const take = (entry: Entry | undefined): void => {
    close();
    entry?.act();
  };
  const key = (event: KeyboardEvent): void => {
    if (event.key === 'ArrowDown') setAt(Math.min(matches.length - 1, at + 1));
    else if (event.key === 'ArrowUp') setAt(Math.max(0, at - 1));
    else if (event.key === 'Enter') take(matches[at]);
    else return;
    event.preventDefault();
  };
  return (
    <dialog class="finder" ref={dialog} aria-label="Find a lane, run, step or command" onClose={close} onClick={(event) => event.target === dialog.current && close()}>
      <input
        type="search"
        role="combobox"
        aria-expanded="true"
        aria-controls="found"
        aria-activedescendant={matches[at] ? `found-${at}` : undefined}
        placeholder="Lane, finding, run, step number or command"
        aria-label="Find"
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={key}
      />
      <ul role="listbox" id="found" aria-label="Found">
        {matches.map((entry, i) => (
          <li key={`${entry.kind} ${entry.name}`} id={`found-${i}`} role="option" aria-selected={i === at} onClick={() => take(entry)}>
            <small class="dim">{entry.kind}</small> <bdi class="clip">{entry.name}</bdi> {entry.keys && <kbd>{entry.keys}</kbd>}
          </li>
        ))}
        {matches.length === 0 && open && <li class="dim">nothing found</li>}
      </ul>
    </dialog>
  );
}
