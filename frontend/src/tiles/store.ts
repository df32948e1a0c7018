/** A cache of power-of-two tiles of one recording: asks for what a view lacks, draws from what it has. */
import type { Range } from '../math/range.ts';
import type { SeriesTile, TileBlock } from './decode.ts';
import type { Axis, TileRequest } from './request.ts';

/** Buckets in a tile; a request covers up to eight neighbouring tiles. */
export const TILE = 512;
const TILES_PER_REQUEST = 8;
const MAX_TILES = 600;
const MAX_IN_FLIGHT = 2;
/** Tiles the server is still refining are asked for again after this, then more and more patiently. */
const FIRST_PATIENCE_MS = 120;
const MOST_PATIENCE_MS = 1000;
/** A tile that failed is asked for again after this. */
const FAILED_MS = 5000;

export interface Tile {
  axis: Axis;
  level: number;
  index: number;
  series: Map<string, SeriesTile>;
  /** Ids of the lanes that were asked for, whether or not the recording had them. */
  lanes: Set<string>;
  timeAt: Float64Array;
  stepAt: Float64Array;
  /** Set when the recording has grown where this tile ends: drawn, but fetched anew. */
  stale: boolean;
  used: number;
}

export type Fetcher = (request: TileRequest, signal: AbortSignal) => Promise<TileBlock>;

const keyOf = (axis: Axis, level: number, index: number): string => `${axis} ${level} ${index}`;

interface Wanted {
  axis: Axis;
  level: number;
  first: number;
  last: number;
  lanes: string[];
  /** Fetched ahead: beside what is in view. */
  ahead: boolean;
}

export class TileStore {
  private tiles = new Map<string, Tile>();
  private inFlight = new Map<string, AbortController>();
  private failed = new Map<string, number>();
  /** Tiles the server is refining: not to be asked for before `at`. */
  private refiningTiles = new Map<string, { at: number; patience: number }>();
  private wanted: Wanted[] = [];
  private tick = 0;
  private closed = false;
  private generation = 0;
  /** Last error of a fetch, cleared by the next success. */
  error: Error | null = null;

  constructor(
    readonly id: string,
    private readonly fetcher: Fetcher,
    private readonly onData: () => void,
    private readonly now: () => number = () => performance.now(),
    private readonly later: (act: () => void, ms: number) => void = (act, ms) => void setTimeout(act, ms),
  ) {}

  /** Looks for the next request after some milliseconds. */
  private pumpLater(ms: number): void {
    this.later(() => {
      if (!this.closed) this.requestNext();
    }, ms + 1);
  }

  /** Tiles overlapping `range` at `level`, in order; entries are null where nothing is cached yet. */
  get(axis: Axis, level: number, range: Range): (Tile | null)[] {
    const size = TILE * 2 ** level;
    const out: (Tile | null)[] = [];
    for (let index = Math.max(0, Math.floor(range.start / size)); index * size < range.end; index++) {
      const tile = this.tiles.get(keyOf(axis, level, index)) ?? null;
      if (tile) tile.used = ++this.tick;
      out.push(tile);
    }
    return out;
  }

  /** The finest cached tiles for `range` from `level` upwards, then below: never an empty frame on zoom. */
  best(axis: Axis, level: number, range: Range, key: string): Tile[] {
    const has = (tile: Tile | null): tile is Tile => tile !== null && tile.series.has(key);
    const exact = this.get(axis, level, range);
    if (exact.length > 0 && exact.every(has)) return exact;
    for (let coarser = level + 1; coarser <= level + 12; coarser++) {
      const tiles = this.get(axis, coarser, range);
      if (tiles.length > 0 && tiles.every(has)) return tiles;
    }
    for (let finer = level - 1; finer >= Math.max(0, level - 2); finer--) {
      const tiles = this.get(axis, finer, range);
      if (tiles.length > 0 && tiles.every(has)) return tiles;
    }
    return exact.filter(has);
  }

  /** Declares what the view needs now; what is no longer needed is not fetched. */
  want(requests: { axis: Axis; level: number; range: Range; lanes: readonly string[]; ahead?: boolean }[]): void {
    this.wanted = requests.map(({ axis, level, range, lanes, ahead = false }) => {
      const size = TILE * 2 ** level;
      return {
        axis,
        level,
        first: Math.max(0, Math.floor(range.start / size)),
        last: Math.max(0, Math.ceil(range.end / size) - 1),
        lanes: [...lanes],
        ahead,
      };
    });
    this.requestNext();
  }

  /** True while something the view asked for has not arrived. */
  get pending(): boolean {
    return this.inFlight.size > 0 || this.refining;
  }

  /** True while something in view is shown more coarsely than there is data for. */
  get refining(): boolean {
    if (this.refiningTiles.size === 0) return false;
    for (const { axis, level, first, last, ahead } of this.wanted)
      for (let index = first; index <= last; index++) if (!ahead && this.refiningTiles.has(keyOf(axis, level, index))) return true;
    return false;
  }

  /** Marks every tile that reaches beyond `axisEnd` to be fetched anew. */
  invalidateFrom(axis: Axis, from: number): void {
    this.generation++;
    for (const tile of this.tiles.values()) {
      if (tile.axis === axis && (tile.index + 1) * TILE * 2 ** tile.level > from) tile.stale = true;
    }
  }

  close(): void {
    this.closed = true;
    for (const controller of this.inFlight.values()) controller.abort();
  }

  /** Ids of the lanes that a wanted tile lacks; all of them if it is missing or stale. */
  private missingLanes(want: Wanted, index: number): string[] {
    const tile = this.tiles.get(keyOf(want.axis, want.level, index));
    if (!tile) return want.lanes;
    if (tile.stale) return [...new Set([...tile.lanes, ...want.lanes])];
    return want.lanes.filter((lane) => !tile.lanes.has(lane));
  }

  /** Begins one request; another one follows in the next frame, or once this one is answered. */
  private requestNext(): void {
    for (const want of this.wanted) {
      let index = want.first;
      while (index <= want.last) {
        if (this.closed || this.inFlight.size >= MAX_IN_FLIGHT) return;
        const lanes = this.missingLanes(want, index);
        const busy = this.inFlight.has(keyOf(want.axis, want.level, index));
        if (lanes.length === 0 || busy || this.isResting(keyOf(want.axis, want.level, index))) {
          index++;
          continue;
        }
        let tiles = 1;
        while (
          tiles < TILES_PER_REQUEST &&
          index + tiles <= want.last &&
          !this.inFlight.has(keyOf(want.axis, want.level, index + tiles)) &&
          this.missingLanes(want, index + tiles).join() === lanes.join()
        )
          tiles++;
        void this.load(want.axis, want.level, index, tiles, lanes);
        return;
      }
    }
  }

  /** A tile that failed is not asked for again at once, nor is one being refined. */
  private isResting(key: string): boolean {
    const coarse = this.refiningTiles.get(key);
    if (coarse && this.now() < coarse.at) return true;
    const at = this.failed.get(key);
    return at !== undefined && this.now() - at < FAILED_MS;
  }

  /** Fetches `tiles` neighbouring tiles from `index` on, and stores them. */
  private async load(axis: Axis, level: number, index: number, tiles: number, lanes: string[]): Promise<void> {
    const controller = new AbortController();
    const { generation } = this;
    const keys = Array.from({ length: tiles }, (_, i) => keyOf(axis, level, index + i));
    for (const key of keys) this.inFlight.set(key, controller);
    try {
      const first = index * TILE;
      const block = await this.fetcher(
        { id: this.id, axis, level, first, count: tiles * TILE, lanes },
        controller.signal,
      );
      if (this.closed) return;
      this.error = null;
      const refining = block.refining ?? [];
      const whole = refining.length > 0 ? lanes.filter((lane) => !refining.includes(lane)) : lanes;
      for (let i = 0; i < tiles; i++) this.storeTile(axis, level, index + i, block, i * TILE, whole);
      this.noteRefining(keys, refining.length > 0);
      // The recording grew meanwhile: what arrived may already miss its last buckets.
      if (generation !== this.generation)
        for (const key of keys) (this.tiles.get(key) as Tile).stale = true;
    } catch (error) {
      if (this.closed || (error as Error).name === 'AbortError') return;
      this.error = error as Error;
      for (const key of keys) this.failed.set(key, this.now());
      this.pumpLater(FAILED_MS);
    } finally {
      for (const key of keys) this.inFlight.delete(key);
    }
    this.onData();
    this.requestNext();
  }

  /** Notes that the server still refines these tiles, or no longer: they are asked for again with growing patience. */
  private noteRefining(keys: string[], refining: boolean): void {
    let longest = 0;
    for (const key of keys) {
      if (!refining) {
        this.refiningTiles.delete(key);
        continue;
      }
      const patience = Math.min(MOST_PATIENCE_MS, (this.refiningTiles.get(key)?.patience ?? FIRST_PATIENCE_MS / 1.5) * 1.5);
      this.refiningTiles.set(key, { at: this.now() + patience, patience });
      longest = Math.max(longest, patience);
    }
    // Once all of them are due: those that were asked for together are so again.
    if (refining) this.pumpLater(longest);
  }

  /** Stores a tile from a block that holds it from bucket `offset` on, beside the lanes that it has. */
  private storeTile(axis: Axis, level: number, index: number, block: TileBlock, offset: number, lanes: string[]): void {
    const key = keyOf(axis, level, index);
    const old = this.tiles.get(key);
    const keep = old && !old.stale ? old : null;
    const cut = <T extends Float32Array | Float64Array>(array: T): T => array.slice(offset, offset + TILE) as T;
    const series = keep ? keep.series : new Map<string, SeriesTile>();
    const coarse = new Set(block.refining);
    for (const [name, tile] of block.series) {
      // What was fetched finely before the recording grew is better than what repeats wider buckets.
      const finer = coarse.has(name.slice(0, name.lastIndexOf('/'))) ? old?.series.get(name) : undefined;
      series.set(name, finer ?? { min: cut(tile.min), max: cut(tile.max), mean: cut(tile.mean) });
    }
    this.tiles.set(key, {
      axis,
      level,
      index,
      series,
      lanes: new Set([...(keep ? keep.lanes : []), ...lanes]),
      timeAt: cut(block.timeAt),
      stepAt: cut(block.stepAt),
      stale: false,
      used: ++this.tick,
    });
    this.failed.delete(key);
    if (this.tiles.size > MAX_TILES) this.evict();
  }

  /** Drops the tiles used longest ago, down to 80 % of the limit. */
  private evict(): void {
    const oldest = [...this.tiles.entries()].sort((a, b) => a[1].used - b[1].used);
    for (const [key] of oldest.slice(0, oldest.length - Math.floor(MAX_TILES * 0.8))) {
      this.tiles.delete(key);
      this.refiningTiles.delete(key);
    }
  }
}
