/** The table of all runs: its rows, which of them are shown, and in which order. Pure. */
import type { RecordingSummary, RunsReply, Status, TotalReply, TrainingRow } from '../api/types.ts';
import { runName } from '../words/labels.ts';
import { titleOfCause } from '../words/vocabulary.ts';

/** A training, or one recording of it; null is not known. */
export interface Row {
  /** The recording that it opens. */
  item: RecordingSummary;
  /** Of a training of several recordings: a row of each, the newest first. */
  parts: Row[];
  training: TrainingRow | null;
  status: Status;
  start: number;
  wall: number | null;
  hours: number | null;
  /** It held no GPU: its hours are its own. */
  noGpu: boolean;
  /** Of the hours, or seconds of the run where those are not known. */
  lost: number | null;
  saves: number | null;
  /** The one to fix first comes first. */
  causes: string[];
}

export type Column = 'name' | 'start' | 'status' | 'wall' | 'hours' | 'lost' | 'saves' | 'cause';

const wallOf = ({ start_ns: start, end_ns: end }: RecordingSummary): number | null =>
  typeof start === 'number' && typeof end === 'number' ? (end - start) / 1e9 : null;

const rowOfRecording = (item: RecordingSummary): Row => ({
  item, parts: [], training: null, status: item.status, start: item.start_ns ?? 0, wall: wallOf(item), hours: null, noGpu: false, lost: item.lost_s ?? null, saves: null,
  causes: item.causes ?? [],
});

/** The row of a training, with one of each of its recordings where it has several. */
function rowOfTraining(training: TrainingRow, items: RecordingSummary[]): Row {
  const first = items.find(({ id }) => id === training.id) ?? (items[0] as RecordingSummary);
  const { top, causes } = training;
  return {
    item: first,
    parts: items.length > 1 ? items.map(rowOfRecording).sort((a, b) => b.start - a.start || (a.item.rank ?? 0) - (b.item.rank ?? 0)) : [],
    training,
    status: first.status,
    start: training.start_ns,
    wall: training.wall_s,
    hours: training.hours,
    noGpu: training.gpus === 0,
    lost: training.lost,
    saves: training.saves,
    causes: top ? [top, ...causes.filter((cause) => cause !== top)] : causes,
  };
}

/** A row for each training; until the sums are there, or of what is not in them, for each recording. */
export function rowsOf({ recordings }: RunsReply, total: TotalReply | null): Row[] {
  const left = new Map(recordings.map((item) => [item.id, item]));
  const rows: Row[] = [];
  for (const training of total?.runs ?? []) {
    const ids = training.recordings.length > 0 ? training.recordings : [training.id];
    const items = ids.map((id) => left.get(id)).filter((item) => item !== undefined);
    if (items.length === 0) continue; // gone since
    for (const { id } of items) left.delete(id);
    rows.push(rowOfTraining(training, items));
  }
  return [...rows, ...[...left.values()].map(rowOfRecording)];
}

const names = new Intl.Collator('en', { numeric: true });
const byName = (a: Row, b: Row): number => names.compare(a.item.run, b.item.run);
const STATES: readonly string[] = ['live', 'ended', 'interrupted', 'lost'];

const VALUES: Record<Exclude<Column, 'name' | 'cause'>, (row: Row) => number | null> = {
  start: (row) => row.start,
  status: (row) => STATES.indexOf(row.status),
  wall: (row) => row.wall,
  hours: (row) => row.hours,
  lost: (row) => row.lost,
  saves: (row) => row.saves,
};

export const isColumn = (name: string): name is Column => name === 'name' || name === 'cause' || Object.hasOwn(VALUES, name);

/** `sort`: a column, after a minus where the largest comes first. What is not known comes last either way. */
export function ordered(rows: readonly Row[], sort: string): Row[] {
  const sign = sort.startsWith('-') ? -1 : 1;
  const column = sort.replace('-', '');
  const then = (a: Row, b: Row): number => b.start - a.start || byName(a, b);
  if (!isColumn(column) || column === 'name') return [...rows].sort((a, b) => sign * byName(a, b) || b.start - a.start);
  if (column === 'cause') {
    const title = new Map(rows.map((row) => [row, row.causes[0] ? titleOfCause(row.causes[0]) : '\uffff']));
    return [...rows].sort((a, b) => {
      const [x, y] = [title.get(a) as string, title.get(b) as string];
      if (x === y) return then(a, b);
      const isEitherUnknown = x === '\uffff' || y === '\uffff';
      return (x < y ? -1 : 1) * (isEitherUnknown ? 1 : sign);
    });
  }
  const value = VALUES[column];
  const last = sign * Infinity;
  return [...rows].sort((a, b) => {
    const [x, y] = [value(a) ?? last, value(b) ?? last];
    if (x === y) return then(a, b);
    return x < y ? -sign : sign;
  });
}

const texts = new WeakMap<Row, string>();

/** What a row is found by: its names, who ran what where, what was found in it, and the verdict. */
function textOf(row: Row): string {
  let text = texts.get(row);
  if (text === undefined) {
    const { item, training, parts } = row;
    const said = [
      runName(item.run, 1000), `fit ${(item.fit_index ?? 0) + 1}`, `rank ${item.rank}`, item.trial, item.trial_config, item.host, row.status, item.verdict, training?.script, training?.user,
      ...row.causes.flatMap((cause) => [cause, titleOfCause(cause)]), ...(item.titles ?? []),
    ];
    text = `${said.join(' ').toLowerCase()} ${parts.map(textOf).join(' ')}`;
    texts.set(row, text);
  }
  return text;
}

/** Those of `rows` in which every word of `text` stands, and the cause was found; the order stays. */
export function matching(rows: readonly Row[], text: string, cause: string): Row[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => (!cause || row.causes.includes(cause)) && words.every((word) => textOf(row).includes(word)));
}
