/** All state of the tab, and the changes a person can make to it. */
import type { JobReply, RecordingReply, RunsReply, TotalReply, WordedFinding } from '../api/types.ts';
import { sameRange, type Range } from '../math/range.ts';
import { headline, rowsOf, type Group } from './findings.ts';
import { inOrder } from '../lanes/spans.ts';
import { EMPTY_LINK, type LinkState, type OpenWindow } from './hash.ts';
import { createStore, type Store } from './store.ts';

export interface AppState extends Omit<LinkState, 'collapsed' | 'hidden'> {
  runs: RunsReply | null;
  runsError: string | null;
  /** The sums of all runs, once the table was opened. */
  total: TotalReply | null;
  totalError: string | null;
  recordings: ReadonlyMap<string, RecordingReply>;
  recordingError: string | null;
  tilesError: string | null;
  /** Other recordings' bearing on the shown one, once it is known. */
  job: JobReply | null;
  /** A person or a link chose the recording; until then the job's verdict may. */
  idSaid: boolean;
  collapsed: ReadonlySet<string>;
  hidden: ReadonlySet<string>;
  help: boolean;
  /** The panel is open without a finding: all findings, and what there is to know. */
  panel: boolean;
  /** The part of the GPU's time that is pointed at. */
  lit: string | null;
  /** Which lane of time a person chose, by recording. */
  gpus: Readonly<Record<string, string>>;
  /** The finding without which the run is shown. */
  without: string | null;
  /** Lanes, runs, steps and commands are searched. */
  finding: boolean;
  notice: string | null;
}

export interface CursorState {
  /** Position in axis units, null when the pointer is elsewhere. */
  at: number | null;
  laneKey: string | null;
  /** Pixels from the left edge of the lanes: the pointer stays there while the view moves under it. */
  pixel: number;
  /** Pointer position in the window, for the tooltip. */
  x: number;
  y: number;
  byKeyboard: boolean;
}

/** The state with which a tab opens at a link. */
export function initialState(link: LinkState = EMPTY_LINK): AppState {
  return {
    ...link,
    collapsed: new Set(link.collapsed),
    hidden: new Set(link.hidden),
    runs: null,
    runsError: null,
    total: null,
    totalError: null,
    recordings: new Map(),
    recordingError: null,
    tilesError: null,
    job: null,
    idSaid: link.id !== null,
    help: false,
    panel: false,
    lit: null,
    gpus: {},
    without: null,
    finding: false,
    notice: null,
  };
}

const HISTORY = 100;
const COALESCE_MS = 700;

/** The place `by` places after `at` among `length`, wrapping around; `at` < 0: the first or the last one. */
function wrapped(at: number, by: number, length: number): number {
  if (at >= 0) return (at + by + length) % length;
  return by > 0 ? 0 : length - 1;
}

/** The tab's state with its actions; views call these and never set fields themselves. */
export class App {
  readonly state: Store<AppState>;
  readonly cursor: Store<CursorState>;
  /** Where the table was left: its scroll position, and the row that Enter opens. */
  left = { scroll: 0, at: -1 };
  private past: (Range | null)[] = [];
  private listed: { recording: RecordingReply | null; job: JobReply | null; rows: Group[] } = { recording: null, job: null, rows: [] };
  private lastMove = { kind: '', at: -Infinity };

  constructor(
    link: LinkState = EMPTY_LINK,
    private readonly now: () => number = () => performance.now(),
  ) {
    this.state = createStore(initialState(link));
    this.cursor = createStore<CursorState>({ at: null, laneKey: null, pixel: 0, x: 0, y: 0, byKeyboard: false });
  }

  get recording(): RecordingReply | null {
    const { id, recordings } = this.state.get();
    return id === null ? null : (recordings.get(id) ?? null);
  }

  /** Shows another recording from its beginning; the axis and the lanes stay as they are. */
  choose(id: string): void {
    const { id: old, job, compare } = this.state.get();
    if (id === old) return;
    this.past = [];
    this.state.set({
      id, idSaid: true, view: null, follow: false, measure: null, selected: null, window: null, touched: false, without: null, lit: null, recordingError: null, tilesError: null,
      // Workers of one job share what is known of it, but for the fit before.
      job: job?.workers.some((worker) => worker.id === id) ? { ...job, since: null } : null,
      // One that is compared changes places with it.
      compare: compare.flatMap((other) => (other !== id ? other : (old ?? []))),
    });
    this.cursor.set({ at: null });
  }

  /** Opens the table of all runs, or goes back to the one that was shown. */
  openList(list: boolean): void {
    this.state.set({ list });
  }

  /** Which rows the table shows, and in which order; it then begins at its top. */
  listBy(by: Partial<Pick<LinkState, 'sort' | 'search' | 'cause'>>): void {
    this.left = { scroll: 0, at: -1 };
    this.state.set(by);
  }

  /** Adds a recording to the comparison or takes it out; the newest seven stay. */
  compareWith(id: string, on: boolean): void {
    const { compare, id: own } = this.state.get();
    const rest = compare.filter((other) => other !== id);
    this.state.set({ compare: on && id !== own ? [...rest, id].slice(-7) : rest });
  }

  /**
   * Moves the view; null is the whole run, which follows a live one. Moves of the same `kind` in
   * quick succession (a wheel, a held key) undo as one.
   */
  look(view: Range | null, kind = 'jump', follow = false): void {
    const { view: old } = this.state.get();
    if (sameRange(old, view)) return;
    const at = this.now();
    if (kind === 'jump' || kind !== this.lastMove.kind || at - this.lastMove.at > COALESCE_MS) {
      this.past.push(old);
      if (this.past.length > HISTORY) this.past.shift();
    }
    this.lastMove = { kind, at };
    // Whoever moves to another place wants to stay there.
    this.state.set({ view, follow: follow && view !== null });
  }

  /** Keeps the end of a live run in view, or lets it go on without us. */
  followEnd(follow: boolean): void {
    this.state.set({ follow });
  }

  /** Goes back to the view before. */
  undo(): void {
    const view = this.past.pop();
    if (view === undefined) return;
    this.lastMove = { kind: '', at: -Infinity };
    this.state.set({ view });
  }

  get canUndo(): boolean {
    return this.past.length > 0;
  }

  /** The axis changes under the same view: `convert` maps a range of the old axis to the new one. */
  setAxis(axis: LinkState['axis'], convert: (range: Range) => Range | null): void {
    const { axis: old, view, measure } = this.state.get();
    if (axis === old) return;
    if ((axis === 'steps') !== (old === 'steps')) {
      this.past = this.past.map((range) => range && convert(range)).filter((range, i) => range || !this.past[i]);
      this.cursor.set({ at: null });
      this.state.set({ axis, view: view && convert(view), measure: measure && convert(measure) });
    } else this.state.set({ axis });
  }

  select(id: string | null): void {
    this.state.set({ selected: id, window: null, touched: true, panel: id !== null, without: null });
  }

  /** Opens the panel with all findings, or closes it. */
  openPanel(panel: boolean): void {
    this.state.set(panel ? { panel } : { panel, selected: null, window: null, measure: null, without: null });
  }

  get panelOpen(): boolean {
    const { panel, selected, window, measure } = this.state.get();
    return panel || selected !== null || window !== null || measure !== null;
  }

  /** Opens a profiler window at a traced step, or closes it; a selected span stays behind it. */
  openWindow(window: OpenWindow | null): void {
    this.state.set({ window, touched: true });
  }

  measureRange(measure: Range | null): void {
    this.state.set({ measure });
  }

  /** The finding `by` places after the selected one among those of its row, in the order of the axis, wrapping around. */
  neighbour(by: number): string | null {
    const { selected } = this.state.get();
    const row = this.rows.find(({ list }) => list.some(({ id }) => id === selected)) ?? this.rows[0];
    const list = inOrder(row?.list ?? []);
    const at = list.findIndex(({ id }) => id === selected);
    return list[wrapped(at, by, list.length)]?.id ?? null;
  }

  /** The first finding of the row `by` places after the selected one's, wrapping around. */
  neighbourRow(by: number): string | null {
    const { rows } = this;
    const at = rows.findIndex(({ list }) => list.some(({ id }) => id === this.state.get().selected));
    return rows[wrapped(at, by, rows.length)]?.first.id ?? null;
  }

  /** The findings as they are listed, a row each; the same list until they change. */
  get rows(): Group[] {
    const { recording } = this;
    const { job } = this.state.get();
    if (recording !== this.listed.recording || job?.findings !== this.listed.job?.findings)
      this.listed = { recording, job, rows: recording ? rowsOf(recording.report, job) : [] };
    return this.listed.rows;
  }

  /** The row that the page's sentence is about. */
  get headline(): Group | null {
    const { recording } = this;
    return recording && headline(recording.report, this.state.get().job).fix;
  }

  /** The selected span or finding. */
  get selection(): WordedFinding | null {
    const { selected } = this.state.get();
    for (const { list } of selected ? this.rows : []) {
      const selectedSpan = list.find(({ id }) => id === selected);
      if (selectedSpan) return selectedSpan;
    }
    return null;
  }

  /** Folds or unfolds a group, hides a lane or shows it again. */
  toggle(field: 'collapsed' | 'hidden', key: string): void {
    const next = new Set(this.state.get()[field]);
    if (!next.delete(key)) next.add(key);
    this.state.set({ [field]: next });
  }

  /** Shows every lane and series that was hidden. */
  showHidden(): void {
    this.state.set({ hidden: new Set() });
  }

  togglePin(key: string): void {
    const { pinned } = this.state.get();
    this.state.set({ pinned: pinned.includes(key) ? pinned.filter((other) => other !== key) : [...pinned, key] });
  }

  /** Shows a message for three seconds. */
  notice(text: string): void {
    this.state.set({ notice: text });
    setTimeout(() => {
      if (this.state.get().notice === text) this.state.set({ notice: null });
    }, 3000);
  }
}
