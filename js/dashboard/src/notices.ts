/** Short messages that something was done, and questions before something is. */
import { signal } from "@preact/signals";

const SHOWN_MS = 4_000;
const MOST = 4; // at once

export interface Question {
  title: string;
  text: string;
  action: string;
  /** What has to be typed, for what cannot be undone. */
  typed?: string;
  isDangerous?: boolean;
  answer: (isYes: boolean) => void;
}

/** What was said last and is still shown, oldest first. */
export const notices = signal<{ text: string }[]>([]);
export const question = signal<Question | undefined>(undefined);

/** Shows a message for a while, below those that are shown already. */
export function say(text: string): void {
  const said = { text };
  notices.value = [...notices.value, said].slice(-MOST);
  setTimeout(() => (notices.value = notices.value.filter((each) => each !== said)), SHOWN_MS);
}

/** Asks before something is done. */
export function ask(asked: Omit<Question, "answer">): Promise<boolean> {
  return new Promise((resolve) => {
    question.value = {
      ...asked,
      answer: (isYes) => {
        question.value = undefined;
        resolve(isYes);
      },
    };
  });
}
