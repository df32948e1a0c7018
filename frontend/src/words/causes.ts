/** How each cause looks, as the server says: a glyph and a colour, so that neither has to be told apart alone. */
import type { CauseWords, WordedFinding } from '../api/types.ts';
import { clean } from '../math/text.ts';
import { titleOfCause, wordsOfCause } from './vocabulary.ts';

const UNKNOWN_CAUSE: Omit<CauseWords, 'title'> = { glyph: '•', colour: 'grey', between_steps: false, part: '' };

/** What a finding is called: as the server says, else by its cause. */
export const titleOf = (item: Pick<WordedFinding, 'title' | 'cause'>): string => clean(item.title, 160) || causeStyle(item.cause).title;

/** The name of a finding's cause; "" where its title says it. */
export function causeBeside(item: Pick<WordedFinding, 'title' | 'cause'>): string {
  const { title } = causeStyle(item.cause);
  return titleOf(item).toLowerCase().includes(title.toLowerCase()) ? '' : title;
}

/** What the evidence names as the culprit: the slowest stage, the callback; empty when it names none. */
export const culprit = (item: Pick<WordedFinding, 'culprit'>): string => clean(item.culprit, 80);

export const causeStyle = (cause: string): CauseWords => ({ ...UNKNOWN_CAUSE, ...wordsOfCause(cause), title: titleOfCause(cause) });
