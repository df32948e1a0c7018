/** The terms in which tiles are asked for; imports nothing, so that every layer may use it. */

/** Steps, or nanoseconds since the recording began. */
export type Axis = 'step' | 'time';

export interface TileRequest {
  /** Recording id. */
  id: string;
  axis: Axis;
  /** A bucket spans 2 ** level axis units. */
  level: number;
  /** Buckets [first, first + count). */
  first: number;
  count: number;
  lanes: readonly string[];
}
