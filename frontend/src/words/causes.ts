/** How each cause looks and is called: a glyph and a colour, so that neither has to be told apart alone. */
import { seconds } from '../math/format.ts';
import { clean } from '../math/text.ts';

export interface CauseStyle {
  glyph: string;
  /** Name of a palette colour, see theme/palette.ts. */
  colour: string;
  title: string;
}

const CAUSES: Record<string, CauseStyle> = {
  input_bound: { glyph: '▮', colour: 'amber', title: 'Input-bound' },
  transfer_bound: { glyph: '⇄', colour: 'orange', title: 'Waiting for copies' },
  launch_bound: { glyph: '⋮', colour: 'olive', title: 'Launch-bound' },
  sync_bound: { glyph: '‖', colour: 'violet', title: 'Waiting for the device every step' },
  small_batch: { glyph: '▫', colour: 'teal', title: 'Batch too small' },
  small_model: { glyph: '▵', colour: 'grey', title: 'Model too small for this GPU' },
  no_tensor_cores: { glyph: '○', colour: 'grey', title: 'Tensor cores unused' },
  memory_pressure: { glyph: '▤', colour: 'red', title: 'Memory pressure' },
  memory_limit: { glyph: '▥', colour: 'teal', title: 'Memory limit set low' },
  cpu_fallback: { glyph: '⌂', colour: 'red', title: 'Running on the CPU' },
  gpus_unused: { glyph: '◌', colour: 'red', title: 'GPUs unused' },
  throttled: { glyph: '▲', colour: 'red', title: 'Throttled' },
  contention: { glyph: '⊗', colour: 'violet', title: 'GPU shared with another process' },
  imbalance: { glyph: '≠', colour: 'teal', title: 'Imbalance' },
  communication_bound: { glyph: '⇌', colour: 'teal', title: 'Waiting for other GPUs' },
  recompilation: { glyph: '↻', colour: 'violet', title: 'Recompilation' },
  host_stall: { glyph: '◆', colour: 'mauve', title: 'Training stalls' },
  gpu_ecc_errors: { glyph: '⚠', colour: 'red', title: 'GPU memory errors' },
  gpu_lost: { glyph: '✕', colour: 'red', title: 'GPU lost' },
};

const UNKNOWN_CAUSE: CauseStyle = { glyph: '•', colour: 'grey', title: 'Bottleneck' };

/** What the evidence names as the culprit: the slowest stage, the callback; empty when it names none. */
export function culprit(item: { evidence?: Record<string, unknown> | null | undefined }): string {
  const evidence = item.evidence ?? {};
  const text = (key: string): string => (typeof evidence[key] === 'string' && evidence[key] !== 'not known which' ? clean(evidence[key], 80) : '');
  const stage = text('slowest_stage');
  if (stage) {
    const ms = evidence.stage_ms_per_batch;
    return typeof ms === 'number' ? `${stage} takes ${seconds(ms / 1e3)} a batch` : stage;
  }
  return text('callback') || text('layer') || text('op');
}

export const causeStyle = (cause: string): CauseStyle =>
  Object.prototype.hasOwnProperty.call(CAUSES, cause) ? (CAUSES[cause] as CauseStyle) : UNKNOWN_CAUSE;
