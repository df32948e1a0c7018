/** What one drawing of the timeline needs to know, and the geometry shared by its parts. */
import type { TimeBudget, Extent, LaneInfo, WordedFinding, RecordingReply, Waits } from '../api/types.ts';
import { clamp, levelFor, shift, span, type Range } from '../math/range.ts';
import { plural } from '../math/format.ts';
import { namedGpus, type Group } from '../state/findings.ts';
import type { LaneSource } from '../lanes/layout.ts';
import type { Palette } from '../theme/palette.ts';
import type { OpenWindow } from '../state/hash.ts';
import type { Axis } from '../tiles/request.ts';
import { TILE, type TileStore } from '../tiles/store.ts';
import { groupTitles } from '../words/labels.ts';

export interface Source {
  id: string;
  label: string;
  recording: RecordingReply;
  tiles: TileStore;
  /** The recording in whose rows it is drawn: of workers of one job the first one, which stands in front, else its own. */
  rowOwner: string;
  /** On the clock axis: how much later it began than the first one, in nanoseconds; else 0. */
  shift: number;
}

export interface Frame {
  axis: Axis;
  /** Label the time axis with the time of day. */
  clock: boolean;
  bounds: Range;
  view: Range;
  /** Width of the lanes in CSS pixels, without the labels. */
  width: number;
  dpr: number;
  level: number;
  overviewLevel: number;
  palette: Palette;
  sources: Source[];
  selected: WordedFinding | null;
  /** The findings of the first source, a row each. */
  groups: Group[];
  /** Groups of lanes of the GPUs that a finding names. */
  named: ReadonlySet<string>;
  /** Which lane of time a person chose, by recording. */
  gpus: Readonly<Record<string, string>>;
  /** The part of the time that stays while the others fade. */
  lit: string | null;
  without: Without | null;
  waits: Waits | null;
  measure: Range | null;
  openWindow: OpenWindow | null;
  live: boolean;
}

/** The run as it would be without a loss. */
export interface Without {
  /** The part of the time that shrinks. */
  part: string;
  /** Share of the part that goes, 0 to 1: at most so much. */
  share: number;
  /** Share of what goes that is promised at least, 0 to 1. */
  least: number;
  /** "40 s instead of 60 s: 1.5×". */
  text: string;
}

const named = new WeakMap<RecordingReply, ReadonlySet<string>>();

/** Groups of lanes of the GPUs that a finding names; the same set until the recording changes. */
export function namedIn(recording: RecordingReply): ReadonlySet<string> {
  const names = named.get(recording) ?? namedGpus(recording.report);
  named.set(recording, names);
  return names;
}

/** The lane of a recording's time: the one that was chosen, else of the GPU that a finding names, else of the first one. */
export function timeLane(recording: RecordingReply, chosen?: string): LaneInfo | undefined {
  const all = recording.lanes.filter(({ kind }) => kind === 'time');
  const about = namedIn(recording);
  return all.find(({ id }) => id === chosen) ?? all.find(({ id }) => about.has(id.slice(id.indexOf(':') + 1))) ?? all[0];
}

export const budgetOf = ({ budgets }: RecordingReply, lane: string | undefined): TimeBudget | undefined => budgets.find((budget) => budget.lane === lane);

const scales = new WeakMap<TimeBudget, ReadonlyMap<string, number>>();

/**
 * Part of the time -> what its findings lost over what its lane sums up. Only parts of which both differ by at most a
 * twentieth: they are the same time, seen with other edges, and one loss has one number. Of other parts the panel says
 * why they differ.
 */
export function lossScales({ report }: RecordingReply, budget: TimeBudget): ReadonlyMap<string, number> {
  const scaleOfPart = scales.get(budget) ?? new Map(
    budget.parts.flatMap(({ name, seconds }): [string, number][] => {
      const scale = lostIn(report, name) / seconds;
      return Math.abs(scale - 1) <= 0.05 ? [[name, scale]] : [];
    }),
  );
  scales.set(budget, scaleOfPart);
  return scaleOfPart;
}

/** Seconds that all findings of a part lost together. */
export const lostIn = ({ spans, findings }: RecordingReply['report'], part: string): number => [...spans, ...findings].reduce((sum, item) => sum + (item.part === part ? (item.lost_s ?? 0) : 0), 0);

/** Whether a problem is one of a file of rows. */
export const isOfRows = ({ message }: RecordingReply['problems'][number]): boolean => /steps not readable|rows are not shown/.test(message);

/** "step data damaged: 240 steps not readable"; "" where all rows could be read that somebody asked for. */
export function damageOf({ problems, report }: RecordingReply, budget: TimeBudget | undefined): string {
  const problem = problems.find(isOfRows);
  const lost = /[\d,]+ steps/.exec(problem?.message ?? '')?.[0] ?? (budget?.known_s ? 'some steps' : plural(report.steps, 'step'));
  return problem ? `step data damaged: ${lost} not readable` : '';
}

/** What the layout needs to know of a recording. */
export const lanesOf = ({ lanes, report }: RecordingReply): Omit<LaneSource, 'id' | 'label'> => ({ lanes, groupTitles: groupTitles(report), named: namedGpus(report) });

/** Narrowest view: four steps, or a millisecond. */
export const NARROWEST: Record<Axis, number> = { step: 4, time: 1e6 };

/** The whole recording in units of the axis: steps, or nanoseconds since it began. */
export function extentRange(extent: Extent, axis: Axis): Range {
  // A trace that was imported begins at the step it was taken at.
  if (axis === 'step') return { start: extent.first_step, end: Math.max(extent.last_step + 1, extent.first_step + 1) };
  return { start: 0, end: Math.max(extent.end_ns - extent.start_ns, 1e6) };
}

/** The range that all sources take together, each shifted by its own `shift`. */
export function boundsOf(sources: { recording: RecordingReply; shift: number }[], axis: Axis): Range {
  const ranges = sources.map(({ recording, shift: by }) => shift(extentRange(recording.extent, axis), by));
  if (ranges.length === 0) return { start: 0, end: NARROWEST[axis] };
  return { start: Math.min(...ranges.map(({ start }) => start)), end: Math.max(...ranges.map(({ end }) => end)) };
}

export function resolveView(view: Range | null, bounds: Range, axis: Axis): Range {
  return view ? clamp(view, bounds, Math.min(NARROWEST[axis], span(bounds))) : bounds;
}

/** Levels of the view and of the overview; `finest` is the finest there is. */
export const levelsOf = (
  view: Range,
  bounds: Range,
  width: number,
  dpr: number,
  finest: number,
): { level: number; overviewLevel: number } => ({
  level: Math.max(finest, levelFor(view, width * Math.min(dpr, 2))),
  overviewLevel: Math.max(finest, levelFor(bounds, Math.max(256, Math.min(width, 1024)))),
});

/**
 * The time (ns since the start) at a step, interpolated between buckets, or the step at a time; NaN where no tile is
 * known. `axis`: of `value`.
 */
export function otherAxisValue(tiles: TileStore, axis: Axis, level: number, value: number): number {
  const tile = findTile(tiles, axis, level, value);
  if (!tile) return NaN;
  const size = 2 ** tile.level;
  const position = value / size - tile.index * TILE;
  const at = Math.min(TILE - 1, Math.max(0, Math.floor(position)));
  const values = axis === 'step' ? tile.timeAt : tile.stepAt;
  let before = at;
  // The newest bucket at or before it that is known.
  while (before >= 0 && Number.isNaN(values[before] as number)) before--;
  if (before < 0) return NaN;
  const low = values[before] as number;
  if (axis === 'time') return low;
  // The next one that is known.
  let after = at + 1;
  while (after < TILE && Number.isNaN(values[after] as number)) after++;
  if (after >= TILE) return low;
  return low + (((values[after] as number) - low) * (position - before)) / (after - before);
}

/** The finest cached tile at a place of the axis, up to 16 levels coarser; null if there is none. */
function findTile(tiles: TileStore, axis: Axis, level: number, value: number): ReturnType<TileStore['get']>[number] {
  for (let step = 0; step <= 16; step++) {
    const tile = tiles.get(axis, level + step, { start: value, end: value + 1e-6 })[0];
    if (tile) return tile;
  }
  return null;
}

/** Converts a range of `axis` to the other axis with the recording's own steps; null where they are not known. */
export function convertRange(source: Source, axis: Axis, level: number, range: Range): Range | null {
  const start = otherAxisValue(source.tiles, axis, level, range.start);
  const end = otherAxisValue(source.tiles, axis, level, range.end - 1e-9);
  if (!Number.isFinite(start) || !Number.isFinite(end)) return null;
  const to: Axis = axis === 'step' ? 'time' : 'step';
  const bounds = extentRange(source.recording.extent, to);
  return end > start ? clamp({ start, end }, bounds, NARROWEST[to]) : null;
}

