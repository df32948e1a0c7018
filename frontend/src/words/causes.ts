/** How each cause looks: a glyph and a colour, so that neither has to be told apart alone. */
import type { WordedFinding } from '../api/types.ts';
import type { Group } from '../lanes/findings.ts';
import { duration } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { titleOfCause } from './vocabulary.ts';

interface Look {
  glyph: string;
  /** Name of a palette colour, see theme/palette.ts. */
  colour: string;
}

export interface CauseStyle extends Look {
  title: string;
}

const CAUSES: Record<string, Look> = {
  input_bound: { glyph: '▮', colour: 'amber' },
  transfer_bound: { glyph: '⇄', colour: 'orange' },
  launch_bound: { glyph: '⋮', colour: 'olive' },
  sync_bound: { glyph: '‖', colour: 'violet' },
  small_batch: { glyph: '▫', colour: 'teal' },
  small_model: { glyph: '▵', colour: 'grey' },
  no_tensor_cores: { glyph: '○', colour: 'grey' },
  memory_pressure: { glyph: '▤', colour: 'red' },
  memory_growth: { glyph: '◢', colour: 'red' },
  memory_spill: { glyph: '⤓', colour: 'red' },
  half_precision_cpu: { glyph: '½', colour: 'grey' },
  out_of_memory: { glyph: '☒', colour: 'red' },
  memory_limit: { glyph: '▥', colour: 'teal' },
  cpu_fallback: { glyph: '⌂', colour: 'red' },
  gpus_unused: { glyph: '◌', colour: 'red' },
  throttled: { glyph: '▲', colour: 'red' },
  contention: { glyph: '⊗', colour: 'violet' },
  imbalance: { glyph: '≠', colour: 'teal' },
  communication_bound: { glyph: '⇌', colour: 'teal' },
  recompilation: { glyph: '↻', colour: 'violet' },
  host_stall: { glyph: '◆', colour: 'mauve' },
  between_fits: { glyph: '⋯', colour: 'mauve' },
  host_callback: { glyph: '↩', colour: 'mauve' },
  gpu_ecc_errors: { glyph: '⚠', colour: 'red' },
  repeated_steps: { glyph: '⟲', colour: 'slate' },
  gpu_lost: { glyph: '✕', colour: 'red' },
};

const UNKNOWN_CAUSE: Look = { glyph: '•', colour: 'grey' };

/** What a finding is called: as the server says, else by its cause. */
export const titleOf = (item: Pick<WordedFinding, 'title' | 'cause'>): string => clean(item.title, 160) || causeStyle(item.cause).title;

/** The name of a finding's cause; "" where its title says it. */
export function causeBeside(item: Pick<WordedFinding, 'title' | 'cause'>): string {
  const { title } = causeStyle(item.cause);
  return titleOf(item).toLowerCase().includes(title.toLowerCase()) ? '' : title;
}

/** A row of findings in one line: its glyph, its name, what it costs. */
export const rowText = ({ first: { item }, lost }: Group): string => [`${causeStyle(item.cause).glyph} ${titleOf(item)}`, lost !== null && duration(lost)].filter(Boolean).join(' · ');

/** What the evidence names as the culprit: the slowest stage, the callback; empty when it names none. */
export const culprit = (item: Pick<WordedFinding, 'culprit'>): string => clean(item.culprit, 80);

export const causeStyle = (cause: string): CauseStyle => ({
  ...(Object.prototype.hasOwnProperty.call(CAUSES, cause) ? (CAUSES[cause] as Look) : UNKNOWN_CAUSE),
  title: titleOfCause(cause),
});
