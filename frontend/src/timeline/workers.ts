/** Where a compared recording stands: workers of a job by one clock, other runs by their own. */
import type { RecordingReply, WorkerReply } from '../api/types.ts';
import type { Range } from '../math/range.ts';

/**
 * How much later `recording` began than `first`, in ns on the reference worker's clock; negative = earlier. Clocks that
 * are not known are taken to be right. Clocks that drift are exact in the middle of `view` (ns since `first` began; null
 * = all).
 */
export function startsLater(recording: RecordingReply, first: RecordingReply, workers: readonly WorkerReply[], view: Range | null): number {
  const middle = view ? (view.start + view.end) / 2 : (first.extent.end_ns - first.extent.start_ns) / 2;
  const at = first.extent.start_ns + middle;
  const start = (recording: RecordingReply): number => {
    const clock = workers.find(({ id }) => id === recording.id)?.clock;
    return recording.extent.start_ns - (clock ? clock.offset_ns + clock.drift * (at - clock.at_ns) : 0);
  };
  return recording === first ? 0 : start(recording) - start(first);
}
