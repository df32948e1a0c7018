/** The list of recordings as one looks for one among thousands: searched, sorted. Pure. */
import type { RecordingSummary } from '../api/types.ts';
import { titleOfCause } from '../words/vocabulary.ts';

export type Order = 'newest' | 'lost' | 'name';

export const ORDERS: Readonly<Record<Order, string>> = { newest: 'newest first', lost: 'most time lost first', name: 'by name' };

/** What a recording is found by: its names, what was found in it, and the verdict. */
const haystack = (item: RecordingSummary): string =>
  [
    item.run, item.label, item.trial, item.trial_config, item.host, item.status, item.verdict,
    ...(item.causes ?? []).flatMap((cause) => [cause, titleOfCause(cause)]), ...(item.titles ?? []),
  ].join(' ').toLowerCase();

const texts = new WeakMap<RecordingSummary, string>();

function textOf(item: RecordingSummary): string {
  let text = texts.get(item);
  if (text === undefined) texts.set(item, (text = haystack(item)));
  return text;
}

const newest = (a: RecordingSummary, b: RecordingSummary): number => (b.start_ns ?? 0) - (a.start_ns ?? 0);

const COMPARE: Record<Order, (a: RecordingSummary, b: RecordingSummary) => number> = {
  newest,
  lost: (a, b) => (b.lost_s ?? -1) - (a.lost_s ?? -1) || newest(a, b),
  name: (a, b) => a.run.localeCompare(b.run, 'en', { numeric: true }) || newest(a, b),
};

/** Those of `list` in which every word of `text` stands, in the order asked for. */
export function listed(list: readonly RecordingSummary[], text: string, order: Order): RecordingSummary[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return list.filter((item) => words.every((word) => textOf(item).includes(word))).sort(COMPARE[order]);
}
