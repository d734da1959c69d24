/** Short messages that something was done, and questions before something is. */
import { signal } from "@preact/signals";

const SHOWN_MS = 4_000;

export interface Question {
  title: string;
  text: string;
  action: string;
  /** What has to be typed, for what cannot be undone. */
  typed?: string;
  isDangerous?: boolean;
  answer: (isYes: boolean) => void;
}

export const notice = signal("");
export const question = signal<Question | undefined>(undefined);

let timer: ReturnType<typeof setTimeout> | undefined;

export function say(text: string): void {
  notice.value = text;
  clearTimeout(timer);
  timer = setTimeout(() => (notice.value = ""), SHOWN_MS);
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
