/** A report that carries its data: the same answers as the server's, from inside the page. */
import { decodeTiles, type TileBlock } from '../tiles/decode.ts';
import { coarsen } from '../tiles/coarsen.ts';
import type { Axis, TileRequest } from '../tiles/request.ts';
import type { JobReply, RecordingReply, RunsReply, TotalReply, WindowReply } from './types.ts';

interface EmbeddedTiles {
  level: number;
  /** Tile replies as the server sends them, gzipped, in base64; all lanes together. */
  blocks: string[];
}

/** Where the server replies in JSON. */
export type Route = 'runs' | 'total' | 'recording' | 'job' | 'window';

interface Embedded {
  runs: RunsReply;
  total?: TotalReply | null;
  /** Ids of those that are open at first: one, and what it is compared with. */
  shown?: string[];
  recordings: Record<string, { reply: RecordingReply; tiles: Record<Axis, EmbeddedTiles>; windows?: Record<string, WindowReply | null>; job?: JobReply }>;
}

class OfflineSource {
  private blocks = new Map<string, Promise<TileBlock[]>>();

  constructor(private readonly data: Embedded) {}

  get shown(): string[] {
    return this.data.shown ?? [];
  }

  /** It holds the table of all runs, and none of them. */
  get isTable(): boolean {
    return Object.keys(this.data.recordings).length === 0;
  }

  /** What the server says at a route; undefined where this page does not hold it. */
  reply(route: Route, { id = '', window = '' }: { id?: string; window?: string }): unknown {
    const { runs, total = null, recordings } = this.data;
    const entry = Object.hasOwn(recordings, id) ? recordings[id] : undefined;
    return { runs, total, recording: entry?.reply, job: entry?.job, window: entry?.windows?.[window] ?? undefined }[route];
  }

  /** The buckets that are asked for, merged from the one level that the page holds. */
  async tiles(request: TileRequest): Promise<TileBlock> {
    const { axis, level, first, count } = request;
    const key = `${request.id} ${axis}`;
    const blocks = this.blocks.get(key) ?? this.decode(request.id, axis);
    this.blocks.set(key, blocks);
    const [base] = await blocks;
    if (!base) throw new RangeError('this report holds no tiles of that recording');
    return coarsen(base, level, first, count, new Set(request.lanes));
  }

  /** All tiles of a recording on an axis, as one block; [] without any. */
  private async decode(id: string, axis: Axis): Promise<TileBlock[]> {
    const tiles = this.data.recordings[id]?.tiles[axis];
    const parts = await Promise.all(
      (tiles?.blocks ?? []).map(async (text) => {
        const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
        const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
        return decodeTiles(await new Response(stream).arrayBuffer());
      }),
    );
    return parts.length > 0 ? [joinBlocks(parts)] : [];
  }
}

/** One block of several, which hold neighbouring ranges of buckets, and each range for other lanes. NaN where none has data. */
function joinBlocks(parts: TileBlock[]): TileBlock {
  const starts = [...new Set(parts.map(({ first }) => first))].sort((a, b) => a - b);
  const ofStart = (start: number): TileBlock[] => parts.filter(({ first }) => first === start);
  const base = ofStart(starts[0] as number)[0] as TileBlock;
  const count = starts.reduce((sum, start) => sum + (ofStart(start)[0] as TileBlock).count, 0);
  const fill = <T extends Float32Array | Float64Array>(into: T, get: (part: TileBlock) => T | undefined): T => {
    into.fill(NaN);
    for (const part of parts) {
      const values = get(part);
      if (values) into.set(values, part.first - base.first);
    }
    return into;
  };
  const series: TileBlock['series'] = new Map();
  for (const key of new Set(parts.flatMap((part) => [...part.series.keys()]))) {
    const filled = (name: 'min' | 'max' | 'mean'): Float32Array => fill(new Float32Array(count), (part) => part.series.get(key)?.[name]);
    series.set(key, { min: filled('min'), max: filled('max'), mean: filled('mean') });
  }
  const timeAt = fill(new Float64Array(count), (part) => part.timeAt);
  const stepAt = fill(new Float64Array(count), (part) => part.stepAt);
  return { ...base, count, series, timeAt, stepAt };
}

/** The data of this page when it is a report in one file, else null. */
export function readEmbedded(): OfflineSource | null {
  if (typeof document === 'undefined') return null;
  const element = document.getElementById('gpu-utilization-data');
  return element ? new OfflineSource(JSON.parse(element.textContent ?? '') as Embedded) : null;
}
