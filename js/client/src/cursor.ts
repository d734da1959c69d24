/** A position in a program's history: everything up to and including `seq` of `epoch` is known. */
export interface Cursor {
  epoch: string;
  seq: number;
  /** Of the message at `seq`; with it the broker finds out that it has lost history. */
  id?: string;
}
