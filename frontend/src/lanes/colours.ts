/** The colour of each series of a lane, in the plot, its legend and the tooltip alike. */
import type { LaneInfo } from '../api/types.ts';
import { laneColour, seriesColour } from '../words/accounts.ts';

/** Of a band lane's further series: neutral, since a colour means a cause. */
export const EXTRA = ['ink', 'grey', 'steel'];

/** `lane` with all of its series, also those that are not shown: hiding one leaves the others' colours. */
export function colourOf(lane: Pick<LaneInfo, 'id' | 'kind' | 'series'>, series: string): string {
  if (lane.kind === 'stack') return seriesColour(series);
  const at = lane.series.findIndex(({ name }) => name === series);
  return at <= 0 ? laneColour(lane.id) : (EXTRA[(at - 1) % EXTRA.length] as string);
}
