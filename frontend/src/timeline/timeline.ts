/** Ties state, tiles and canvases together: decides what to fetch and redraws once a frame. */
import { fetchTiles } from '../api/client.ts';
import type { WordedFinding, RecordingReply, WindowInfo } from '../api/types.ts';
import { isAbout, layOut, seriesRowKey, type LaneRow, type LaneSource, type Layout } from '../lanes/layout.ts';
import { spanRange } from '../lanes/spans.ts';
import { partAt, type Hole } from '../lanes/time.ts';
import { remedyOf } from '../state/findings.ts';
import { copyText, pasted } from '../views/fix.tsx';
import { cleanCode } from '../math/text.ts';
import { windowRange } from '../lanes/windows.ts';
import { plural } from '../math/format.ts';
import { clamp, levelFor, padded, sameRange, shift, span, stretched, toPixel, toValue, zoomAt, type Range } from '../math/range.ts';
import type { App } from '../state/app.ts';
import { createStore, type Store } from '../state/store.ts';
import { readPalette, type Palette } from '../theme/palette.ts';
import type { Axis } from '../tiles/request.ts';
import { TileStore } from '../tiles/store.ts';
import { sourceLabel } from '../words/labels.ts';
import { startsLater } from './workers.ts';
import { drawBody, scaleAll, type LaneScale, type Tops } from './body.ts';
import { boundsOf, convertRange, extentRange, lanesOf, levelsOf, namedIn, NARROWEST, resolveView, timeLane, type Frame, type Source } from './frame.ts';
import { drawHead, layOutHead, windowAt, type Head, type ShownTime } from './head.ts';
import { shortenedBy } from './without.ts';
import { drawOverlay } from './overlay.ts';
import { stepsIn } from './readout.ts';

export interface Surfaces {
  root: HTMLElement;
  scroller: HTMLElement;
  surface: HTMLElement;
  head: HTMLCanvasElement;
  body: HTMLCanvasElement;
  overlay: HTMLCanvasElement;
}

export interface Shape {
  layout: Layout;
  head: Head | null;
  width: number;
  height: number;
}

/** Values beside the lanes are written at most this often while the view moves. */
const ANNOUNCE_MS = 100;

/** How many steps are shown around one that was asked for. */
const STEPS_AROUND = 60;
/** A view that did not change for so long rests. */
const REST_MS = 120;
/** While the view moves, lanes that take longer than this to draw are stretched, and drawn anew now and then. */
const QUICK_MS = 8;
const STRETCHED_MS = 400;

const EMPTY: Layout = { rows: [], height: 0 };

export class Timeline {
  /** What the labels beside the canvas need; changes rarely. */
  readonly shape: Store<Shape> = createStore<Shape>({ layout: EMPTY, head: null, width: 0, height: 0 });
  frame: Frame | null = null;
  head: Head | null = null;
  /** What the lanes of time show. */
  times: ShownTime[] = [];
  scales = new Map<string, LaneScale>();
  /** The labels' elements that are written at each drawing, by row key. */
  readonly labels = new Map<string, { value: HTMLElement; scale: HTMLElement }>();
  /** A range being dragged, not yet the measured one. */
  drag: Range | null = null;
  /** Where a measurement by keyboard began. */
  marked: number | null = null;
  /** Counts full drawings, for what shows values of the present frame. */
  readonly drawn: Store<{ count: number }> = createStore({ count: 0 });
  private surfaces: Surfaces | null = null;
  /** Scales of the present view, which must not change while one scrolls. */
  private scaleTops: { of: string; values: Tops } = { of: '', values: new Map() };
  private scaleTimer: ReturnType<typeof setTimeout> | undefined;
  /** What the lanes' canvas shows, and until when it may stand for other views. */
  private drawnLanes: { of: unknown[]; view: Range; until: number } = { of: [], view: { start: 0, end: 1 }, until: 0 };
  /** Set while the view moves. */
  private restTimer: ReturnType<typeof setTimeout> | undefined;
  private palette: Palette | null = null;
  private stores = new Map<string, TileStore>();
  /** The surfaces' sizes as last observed: asking in a frame would lay out all labels again. */
  private size = { width: 0, height: 0, whole: 0, scrolled: 0 };
  private overlayClear = false;
  private layoutKey: unknown[] = [];
  private headKey: unknown[] = [];
  private pending: 'none' | 'overlay' | 'all' = 'none';
  private announcedAt = -Infinity;
  private announceTimer: ReturnType<typeof setTimeout> | undefined;
  private observer: ResizeObserver | null = null;
  private unsubscribe: (() => void)[] = [];

  constructor(readonly app: App) {}

  /** Draws on these elements from now on; returns a function that stops it. */
  mount(surfaces: Surfaces): () => void {
    this.surfaces = surfaces;
    this.palette = null;
    const measure = (): void => {
      const { root, scroller, surface } = surfaces;
      this.size = { width: surface.clientWidth, height: scroller.clientHeight, whole: root.clientHeight, scrolled: scroller.scrollTop };
      this.invalidate();
    };
    this.observer = new ResizeObserver(measure);
    for (const element of [surfaces.root, surfaces.scroller, surfaces.surface]) this.observer.observe(element);
    surfaces.scroller.addEventListener('scroll', measure, { passive: true });
    this.unsubscribe = [
      this.app.state.subscribe(() => this.invalidate()),
      this.app.cursor.subscribe(() => this.invalidate('overlay')),
    ];
    measure();
    return () => {
      this.observer?.disconnect();
      for (const stop of this.unsubscribe) stop();
      this.surfaces = null;
    };
  }

  /** Draws at the next frame; `overlay` leaves the lanes as they are. */
  invalidate(what: 'overlay' | 'all' = 'all'): void {
    if (this.pending === 'none') requestAnimationFrame(() => this.draw());
    if (this.pending !== 'all') this.pending = what;
  }

  themeChanged(): void {
    this.palette = null;
    this.invalidate();
  }

  /** The recording has new data: fetch the tiles at its end again. */
  dataGrew(id: string, before: RecordingReply, after: RecordingReply): void {
    const store = this.stores.get(id);
    if (!store) return;
    for (const axis of ['step', 'time'] as const) {
      const end = extentRange(before.extent, axis).end;
      // Late samples and the last flush's open step may still change what lies just before the end.
      store.invalidateFrom(axis, axis === 'time' ? end - 10e9 : end - 2 - stepsIn(before, 10));
    }
    if (after.report.status !== before.report.status) this.invalidate();
  }

  /** The recordings that are shown, the first one in front; stores of others are closed. */
  get sources(): Source[] {
    const { id, compare, recordings, axis, job, view } = this.app.state.get();
    const ids = [id, ...compare].filter((recordingId): recordingId is string => recordingId !== null && recordings.has(recordingId));
    for (const [storeId, store] of this.stores) {
      if (ids.includes(storeId)) continue;
      store.close();
      this.stores.delete(storeId);
    }
    return ids.map((recordingId) => {
      let tiles = this.stores.get(recordingId);
      if (!tiles) {
        tiles = new TileStore(recordingId, fetchTiles, () => this.tilesArrived());
        this.stores.set(recordingId, tiles);
      }
      const recording = recordings.get(recordingId) as RecordingReply;
      const first = recordings.get(ids[0] as string) as RecordingReply;
      // Workers of one job stand where they were; other runs do so on the clock axis only.
      const together = recording.report.session === first.report.session;
      const shift = axis === 'clock' || (axis === 'time' && together) ? startsLater(recording, first, job?.workers ?? [], view) : 0;
      const rowOwner = together && recording.report.rank !== first.report.rank ? first.id : recordingId;
      return { id: recordingId, label: sourceLabel(recording), recording, tiles, rowOwner, shift };
    });
  }

  /** Tiles came, or did not: then the lanes are emptier than the recording, which has to be said. */
  private tilesArrived(): void {
    const failed = [...this.stores.values()].find(({ error }) => error);
    this.app.state.set({ tilesError: failed?.error?.message ?? null });
    this.invalidate();
  }

  /** The layout of the lanes, which stays until what it depends on changes; `height` of the visible part, in pixels. */
  private relayout(sources: Source[], compact: boolean, height: number): Layout {
    const { collapsed, pinned, hidden } = this.app.state.get();
    const key = [collapsed, pinned, hidden, compact, height, ...sources.map(({ recording }) => recording)];
    if (haveSameItems(key, this.layoutKey)) return this.shape.get().layout;
    this.layoutKey = key;
    const behind = sources.filter(({ id, rowOwner }) => id !== rowOwner).length;
    const lanes: LaneSource[] = sources.filter(({ id, rowOwner }) => id === rowOwner).map(({ id, label, recording }, i) => ({
      id, label, ...lanesOf(recording), front: i === 0 && behind > 0 ? `rank ${recording.report.rank}, ${plural(behind, 'other worker')} as thin lines` : '',
    }));
    const preferences = { collapsed, pinned, hidden };
    const layout = layOut(lanes, preferences, compact);
    // Few lanes on a large screen grow into the room there is, in steps so that nothing wobbles.
    const room = Math.min(2, Math.floor((4 * height) / Math.max(1, layout.height)) / 4);
    return room > 1 ? layOut(lanes, preferences, compact, room) : layout;
  }

  /** Draws what was asked for since the last frame. */
  private draw(): void {
    const what = this.pending;
    this.pending = 'none';
    const { surfaces } = this;
    if (!surfaces || innerHeight === 0) return;
    if (what === 'all' || !this.frame) this.drawAll(surfaces);
    if (this.frame) this.drawPointer(surfaces, this.frame);
  }

  /** Makes a frame of the state and draws head and lanes; asks for the tiles that they lack. */
  private drawAll(surfaces: Surfaces): void {
    const state = this.app.state.get();
    const sources = this.sources;
    const first = sources[0];
    const { width, height, scrolled } = this.size;
    if (!first || width < 10) {
      this.frame = null;
      return;
    }
    const axis: Axis = state.axis === 'steps' ? 'step' : 'time';
    const bounds = boundsOf(sources, axis);
    const live = first.recording.report.status === 'live';
    const view = resolveView(state.follow && live && state.view ? movedToEnd(state.view, bounds.end) : state.view, bounds, axis);
    // A link says where one is.
    if (state.follow && state.view && state.view.end !== view.end) this.app.state.set({ view });
    const dpr = Math.min(window.devicePixelRatio || 1, 3);
    const palette = (this.palette ??= readPalette(document.documentElement));
    const finest = Math.max(...sources.map(({ recording }) => recording.finest?.[axis] ?? 0));
    const levels = levelsOf(view, bounds, width, dpr, finest);
    const frame: Frame = {
      axis, clock: state.axis === 'clock', bounds, view, width, dpr, ...levels, palette, sources,
      selected: this.app.selection,
      groups: this.app.rows,
      named: namedIn(first.recording),
      gpus: state.gpus,
      lit: state.lit,
      without: shortenedBy(this.app, state.without),
      waits: state.job?.waits ?? null,
      measure: state.measure,
      openWindow: state.window,
      live,
    };
    if (this.frame && !sameRange(this.frame.view, view)) this.viewMoved();
    const turned = this.frame !== null && this.frame.axis !== axis;
    this.frame = frame;
    // A pointer that moved since the axis was chosen was placed on the old one.
    if (turned) this.app.cursor.set({ at: this.cursorAt(frame) });
    const compact = width < 520 || first.recording.lanes.length > 40;
    const layout = this.relayout(sources, compact, height);
    const head = this.headOf(first, frame);
    const old = this.shape.get();
    if (old.layout !== layout || old.width !== width || old.height !== height || old.head !== head) this.shape.set({ layout, head, width, height });
    const scroll = Math.max(0, Math.min(scrolled, layout.height - height));
    this.wantTiles(frame, layout, scroll, height);
    const headContext = sizedContext(surfaces.head, width, head.height, dpr);
    this.times = drawHead(headContext, frame, head);
    this.drawLanes(surfaces.body, frame, layout, scroll, height);
    if (sources.length > 1) this.scaleLater();
    this.announce();
  }

  /** The head's layout, which stays while the view moves. */
  private headOf(first: Source, frame: Frame): Head {
    const of = [frame.axis, frame.waits, frame.gpus, innerHeight, innerWidth, ...frame.sources.flatMap(({ recording, rowOwner }) => [recording, rowOwner])];
    if (!this.head || !haveSameItems(of, this.headKey)) this.head = layOutHead(first, frame);
    this.headKey = of;
    return this.head;
  }

  /** Draws once more when the view has not changed for `REST_MS`. */
  private viewMoved(): void {
    clearTimeout(this.restTimer);
    this.restTimer = setTimeout(() => {
      this.restTimer = undefined;
      this.invalidate();
    }, REST_MS);
  }

  /** Draws the lanes, or stretches what was drawn of another view while this one moves and drawing takes long. */
  private drawLanes(body: HTMLCanvasElement, frame: Frame, layout: Layout, scroll: number, height: number): void {
    const { axis, view, width, dpr, palette, sources } = frame;
    const of = [body, layout, scroll, height, axis, width, dpr, palette, ...sources.map(({ recording }) => recording)];
    const old = this.drawnLanes;
    const begun = performance.now();
    if (this.restTimer !== undefined && begun < old.until && haveSameItems(of, old.of)) {
      body.style.transform = stretched(old.view, view, width);
      return;
    }
    const key = [axis, view.start, view.end, ...sources.map(({ id }) => id)].join(' ');
    if (key !== this.scaleTops.of) this.scaleTops = { of: key, values: new Map() };
    this.scales = drawBody(sizedContext(body, width, height, dpr), frame, layout, scroll, height, this.scaleTops.values);
    body.style.transform = '';
    const now = performance.now();
    this.drawnLanes = { of, view, until: now - begun > QUICK_MS ? now + STRETCHED_MS : 0 };
  }

  /** Runs are compared on one scale: once the view rests, lanes out of sight count as well. */
  private scaleLater(): void {
    clearTimeout(this.scaleTimer);
    this.scaleTimer = setTimeout(() => {
      if (this.surfaces && this.frame && scaleAll(this.frame, this.shape.get().layout, this.scaleTops.values)) this.invalidate();
    }, REST_MS);
  }

  /** Where the cursor is now: under a pointer that rests, the view may have moved. */
  private cursorAt(frame: Frame): number | null {
    const { at, byKeyboard, pixel } = this.app.cursor.get();
    return at === null || byKeyboard ? at : toValue(frame.view, frame.width, pixel);
  }

  /** Tells those that write values; while the view moves nobody could read more than a few a second. */
  private announce(): void {
    if (this.announceTimer !== undefined) return;
    const wait = this.announcedAt + ANNOUNCE_MS - performance.now();
    const tell = (): void => {
      this.announceTimer = undefined;
      this.announcedAt = performance.now();
      if (!this.surfaces || !this.frame) return;
      this.app.cursor.set({ at: this.cursorAt(this.frame) });
      this.drawn.set({ count: this.drawn.get().count + 1 });
    };
    if (wait <= 0) tell();
    else this.announceTimer = setTimeout(tell, wait);
  }

  /** Draws the crosshair and the measured range; nothing if the overlay is clear and stays so. */
  private drawPointer(surfaces: Surfaces, frame: Frame): void {
    const height = this.size.whole;
    const at = this.cursorAt(frame);
    const nothing = at === null && !this.drag && !frame.measure;
    if (nothing && this.overlayClear) return;
    this.overlayClear = nothing;
    const context = sizedContext(surfaces.overlay, frame.width, height, frame.dpr);
    drawOverlay(context, frame, height, at, this.drag);
  }

  /** Fetches what the view holds of every lane, also of those scrolled away; gives up after a while. */
  async fetchEverything(patience = 8000): Promise<void> {
    const end = performance.now() + patience;
    while (this.frame && performance.now() < end) {
      const { frame } = this; // the view may move meanwhile
      const { layout } = this.shape.get();
      this.wantTiles(frame, layout, 0, layout.height);
      if (!frame.sources.some(({ tiles }) => tiles.pending)) break;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  /** Asks the stores for the tiles that lanes between `scroll` and `scroll + height` pixels need. */
  private wantTiles(frame: Frame, layout: Layout, scroll: number, height: number): void {
    const { axis, level, overviewLevel, view, bounds } = frame;
    // Lanes out of sight wait until the view rests; those far away until they are scrolled near, unless the tables show
    // them or a comparison's scale needs them.
    let margin = this.app.state.get().tables || frame.sources.length > 1 ? Infinity : height;
    if (this.restTimer !== undefined) margin = 0;
    for (const source of frame.sources) {
      const wanted = new Set<string>();
      for (const row of layout.rows) {
        if (row.type !== 'lane' || row.source !== source.rowOwner) continue;
        if (row.top >= scroll + height + margin || row.top + row.height <= scroll - margin) continue;
        wanted.add(row.lane.id);
      }
      const time = timeLane(source.recording, this.app.state.get().gpus[source.id]);
      const overview = time ? [time.id] : [];
      if (time && source.id === source.rowOwner) wanted.add(time.id);
      if (source === frame.sources[0] && this.head) for (const lane of [this.head.mfu, ...this.head.gpus]) if (lane) wanted.add(lane.id);
      const lanes = [...wanted];
      const own = (range: Range): Range => shift(range, -source.shift);
      const requests: Parameters<TileStore['want']>[0] = [{ axis, level, range: own(view), lanes }];
      if (source === frame.sources[0]) requests.unshift({ axis, level: overviewLevel, range: bounds, lanes: overview });
      if (this.restTimer === undefined) requests.push({ axis, level, range: own(clampTo(padded(view, 0.5), bounds)), lanes, ahead: true });
      source.tiles.want(requests);
    }
  }

  // -- moving about ------------------------------------------------------------------------------

  /** The view as it is meant to be: several moves may come before the next drawing. */
  private viewNow(frame: Frame): Range {
    const { view, follow } = this.app.state.get();
    return resolveView(follow && frame.live && view ? movedToEnd(view, frame.bounds.end) : view, frame.bounds, frame.axis);
  }

  /** `e`: the end of the run; a live one's is followed until one moves elsewhere. */
  toEnd(): void {
    const { frame } = this;
    if (!frame || span(frame.view) >= span(frame.bounds)) return;
    this.show(movedToEnd(frame.view, frame.bounds.end));
    if (frame.live) this.app.followEnd(true);
  }

  /** Zooms around an axis value, the cursor or the middle. */
  zoom(factor: number, anchor?: number, kind = 'zoom'): void {
    const { frame } = this;
    if (!frame) return;
    const view = this.viewNow(frame);
    // What is followed stays at the edge.
    const at = this.app.state.get().follow && frame.live ? view.end : (anchor ?? this.cursorAt(frame) ?? (view.start + view.end) / 2);
    this.show(zoomAt(view, Math.min(Math.max(at, view.start), view.end), factor), kind);
  }

  /** Pans by a share of the view. */
  pan(share: number, kind = 'pan'): void {
    const { frame } = this;
    if (!frame) return;
    const view = this.viewNow(frame);
    const by = span(view) * share;
    this.show({ start: view.start + by, end: view.end + by }, kind);
  }

  /** Shows a range of the axis; moves of one `kind` in quick succession undo as one. */
  show(range: Range, kind = 'jump'): void {
    const { frame } = this;
    if (!frame) return;
    const view = clamp(range, frame.bounds, Math.min(NARROWEST[frame.axis], span(frame.bounds)));
    const whole = view.start <= frame.bounds.start && view.end >= frame.bounds.end;
    const { follow } = this.app.state.get();
    this.app.look(whole ? null : view, kind, follow && view.end >= frame.bounds.end);
  }

  /** Brings a span into view with some room around it. */
  showSpan(item: WordedFinding): void {
    const { frame } = this;
    const source = frame?.sources[0];
    const range = frame && source ? spanRange(item, frame.axis, source.recording.extent) : null;
    if (frame && range) {
      const least = NARROWEST[frame.axis] * 4;
      const centre = (range.start + range.end) / 2;
      const wide = span(range) >= least ? range : { start: centre - least / 2, end: centre + least / 2 };
      this.show(padded(wide, 0.15));
    }
  }

  /** The hole, and the part of the time, under a place of the head; null elsewhere. */
  timeAt(x: number, y: number): { shown: ShownTime; part: string; hole: Hole | null } | null {
    const shown = this.times.find(({ row }) => y >= row.top && y < row.top + row.height);
    const hit = shown && partAt(shown.columns, shown.row.lane.series, x, 1 - (y - shown.row.top) / shown.row.height);
    if (!shown || !hit) return null;
    const hole = shown.holes.find(({ part, x0, x1 }) => part === hit.part && x >= x0 - 1 && x <= x1 + 1);
    return { shown, part: hit.part, hole: hole ?? null };
  }

  /** The finding that takes a part of the time at a place of the axis, else anywhere; null where none does. */
  findingOf(part: string, at: number | null): WordedFinding | null {
    const { frame } = this;
    const extent = frame?.sources[0]?.recording.extent;
    const all = this.app.rows.filter(({ list }) => list.some((finding) => finding.part === part));
    const inside = (item: WordedFinding): boolean => {
      const range = frame && extent ? spanRange(item, frame.axis, extent) : null;
      return at !== null && !!range && at >= range.start && at < range.end;
    };
    return all.flatMap(({ list }) => list).find((item) => item.part === part && inside(item)) ?? all[0]?.first ?? null;
  }

  /** Opens the shortest span over a place of the axis (steps, or nanoseconds); false where there is none. */
  openSpanAt(at: number): boolean {
    const { frame, app } = this;
    const extent = frame?.sources[0]?.recording.extent;
    if (!frame || !extent) return false;
    let shortest: { id: string; length: number } | null = null;
    for (const item of app.rows.flatMap(({ list }) => list)) {
      const range = spanRange(item, frame.axis, extent);
      if (!range || at < range.start || at >= range.end) continue;
      if (!shortest || span(range) < shortest.length) shortest = { id: item.id, length: span(range) };
    }
    if (shortest) this.choose(shortest.id);
    return shortest !== null;
  }

  chooseGpu(id: string, lane: string): void {
    this.app.state.set({ gpus: { ...this.app.state.get().gpus, [id]: lane } });
  }

  /** `c`: what is to be pasted for the selected finding, else for the one to fix first. */
  copyFix(row = this.app.rows.find(({ list }) => list.some(({ id }) => id === this.app.state.get().selected)) ?? this.app.headline): void {
    const { app } = this;
    const code = row && cleanCode(remedyOf(row, row.first).item.advice?.code);
    if (!code) app.notice('There is no code to copy');
    else void copyText(pasted(code)).then((done) => app.notice(done ? 'Fix copied' : 'Copying is not allowed here: select the code instead'));
  }

  /** Selects what takes a part of the time; without a finding the part alone stays lit. */
  choosePart(part: string, at: number | null): void {
    const item = this.findingOf(part, at);
    if (item) this.choose(item.id);
    else this.app.notice(part === 'busy' ? 'The GPU was at work' : 'No finding is about this part of the time');
  }

  /** Selects a span, and scrolls to the lanes of its GPU where it is about some of them only. */
  choose(id: string): void {
    const { app, surfaces } = this;
    app.select(id);
    const gpus = app.selection?.gpus ?? [];
    const all = app.recording?.report.gpus.length ?? 0;
    const { rows } = this.shape.get().layout;
    const row = rows.find(({ type, key }) => type === 'group' && isAbout(gpus, key));
    if (!surfaces || !row || 2 * gpus.length >= all) return;
    if (row.type === 'group' && row.collapsed) app.toggle('collapsed', row.key);
    const { scroller, root } = surfaces;
    const hidden = row.top < scroller.scrollTop || row.top + 160 > scroller.scrollTop + scroller.clientHeight;
    // The lanes of a group that was folded get their room with the next drawing.
    const scroll = (): void => void (scroller.scrollTop = row.top);
    if (hidden) requestAnimationFrame(() => requestAnimationFrame(scroll));
    // In a narrow frame the page scrolls.
    root.scrollIntoView({ block: 'nearest' });
  }

  /** Opens the group of a lane, shows the lane and scrolls to it. */
  reveal(key: string, group: string): void {
    const { app, surfaces } = this;
    if (app.state.get().hidden.has(key)) app.toggle('hidden', key);
    if (this.shape.get().layout.rows.some((row) => row.type === 'group' && row.key === group && row.collapsed)) app.toggle('collapsed', group);
    requestAnimationFrame(() =>
      requestAnimationFrame(() => {
        const row = this.shape.get().layout.rows.find((row) => row.key === key);
        if (row && surfaces) surfaces.scroller.scrollTop = row.top;
        surfaces?.scroller.scrollIntoView({ block: 'nearest' });
      }),
    );
  }

  /** Hides a series of a lane or shows it again; the last one that is shown brings all of them back. */
  toggleSeries({ key, lane, whole }: LaneRow, series: string): void {
    const shown = lane.series.some(({ name }) => name !== series) || lane.series.length === 0;
    for (const { name } of shown ? [{ name: series }] : whole.series.filter((item) => item.name !== series)) this.app.toggle('hidden', seriesRowKey(key, name));
  }

  /** Shows a step by its number, and where it went. */
  goToStep(step: number): void {
    const first = this.app.recording?.extent;
    if (!first || first.last_step < first.first_step) return;
    const at = Math.min(Math.max(Math.floor(step), first.first_step), first.last_step);
    this.setAxis('steps');
    const whole = { start: first.first_step, end: first.last_step + 1 };
    const wide = Math.min(STEPS_AROUND, span(whole));
    this.app.look(clamp({ start: at + 0.5 - wide / 2, end: at + 0.5 + wide / 2 }, whole, 1));
    this.app.measureRange({ start: at, end: at + 1 });
  }

  /** The next or the last span of a cause, or the next cause; where the view is zoomed in it follows. */
  toSpan(by: number, row = false): void {
    const { app, frame } = this;
    const id = row ? app.neighbourRow(by) : app.neighbour(by);
    if (id === null) return;
    this.choose(id);
    if (app.selection && frame && span(frame.view) < span(frame.bounds)) this.showSpan(app.selection);
  }

  /** Brings a profiler window into view, with its neighbourhood. */
  showWindow(window: WindowInfo): void {
    const { frame } = this;
    const source = frame?.sources[0];
    const range = frame && source ? windowRange(window, frame.axis, source.recording.extent) : null;
    if (range) this.show(padded(range, 1.5));
  }

  /** Opens the profiler window at or near a place of the axis, at the traced step nearest to it. */
  openWindowAt(at: number, reach?: number): boolean {
    const { frame, head } = this;
    const source = frame?.sources[0];
    if (!frame || !head || !source) return false;
    const hit = windowAt(frame, head, toPixel(frame.view, frame.width, at), reach);
    if (!hit) return false;
    const near = frame.axis === 'step' ? { step: Math.floor(at) } : { step: null, ns: source.recording.extent.start_ns + at };
    this.app.openWindow({ number: hit.window, ...near });
    return true;
  }

  /** `f`: the measured range, else the selected span. */
  fit(): void {
    const { measure } = this.app.state.get();
    const { selection } = this.app;
    if (measure) this.show(measure);
    else if (selection) this.showSpan(selection);
  }

  /** Changes the axis under the same view, and the measured range with it. */
  setAxis(axis: 'steps' | 'time' | 'clock'): void {
    const { frame } = this;
    const source = frame?.sources[0];
    this.app.setAxis(axis, (range) =>
      frame && source ? convertRange(source, frame.axis, Math.min(frame.level, levelFor(range, frame.width)), range) : null,
    );
  }
}

const haveSameItems = (values: unknown[], other: unknown[]): boolean => values.length === other.length && values.every((part, i) => part === other[i]);

const movedToEnd = (view: Range, end: number): Range => shift(view, end - view.end);

const clampTo = (range: Range, bounds: Range): Range => ({
  start: Math.max(range.start, bounds.start),
  end: Math.min(range.end, bounds.end),
});



/** The 2-D context of `canvas`, resized only when needed, in CSS pixels. */
function sizedContext(canvas: HTMLCanvasElement, width: number, height: number, dpr: number): CanvasRenderingContext2D {
  const [w, h] = [Math.round(width * dpr), Math.round(height * dpr)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext('2d') as CanvasRenderingContext2D;
  context.setTransform(dpr, 0, 0, dpr, 0, 0);
  return context;
}
