/** A report that carries its data: the same answers as the server's, from inside the page. */
import { decodeTiles, type TileBlock } from '../tiles/decode.ts';
import { coarsen } from '../tiles/coarsen.ts';
import type { Axis } from '../tiles/store.ts';
import type { TileRequest } from './client.ts';
import type { RecordingReply, RunsReply, WindowReply } from './types.ts';

interface EmbeddedTiles {
  level: number;
  /** Tile replies as the server sends them, gzipped, in base64; all lanes together. */
  blocks: string[];
}

export interface Embedded {
  runs: RunsReply;
  recordings: Record<string, { reply: RecordingReply; tiles: Record<Axis, EmbeddedTiles>; windows?: Record<string, WindowReply | null> }>;
}

export class OfflineSource {
  private blocks = new Map<string, Promise<TileBlock[]>>();

  constructor(private readonly data: Embedded) {}

  runs(): RunsReply {
    // Nothing goes on any more in a file, whatever the run's status was when it was made.
    const recordings = this.data.runs.recordings.map((one) => ({ ...one, revision: 0 }));
    return { ...this.data.runs, recordings };
  }

  recording(id: string): RecordingReply | null {
    const found = Object.prototype.hasOwnProperty.call(this.data.recordings, id) ? this.data.recordings[id] : undefined;
    return found ? { ...found.reply, revision: 0 } : null;
  }

  window(id: string, window: number): WindowReply | null {
    return this.data.recordings[id]?.windows?.[String(window)] ?? null;
  }

  async tiles(request: TileRequest): Promise<TileBlock> {
    const { axis, level, first, count } = request;
    const key = `${request.id} ${axis}`;
    const blocks = this.blocks.get(key) ?? this.decode(request.id, axis);
    this.blocks.set(key, blocks);
    const parts = await blocks;
    const base = parts[0];
    if (!base) throw new RangeError('this report holds no tiles of that recording');
    const series = new Map(parts.flatMap((part) => [...part.series]));
    return coarsen({ ...base, series }, level, first, count, new Set(request.lanes));
  }

  private async decode(id: string, axis: Axis): Promise<TileBlock[]> {
    const tiles = this.data.recordings[id]?.tiles[axis];
    return Promise.all(
      (tiles?.blocks ?? []).map(async (text) => {
        const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
        const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
        return decodeTiles(await new Response(stream).arrayBuffer());
      }),
    );
  }
}

/** The data of this page when it is a report in one file, else null. */
export function readEmbedded(): OfflineSource | null {
  if (typeof document === 'undefined') return null;
  const element = document.getElementById('gpu-utilization-data');
  return element ? new OfflineSource(JSON.parse(element.textContent ?? '') as Embedded) : null;
}
