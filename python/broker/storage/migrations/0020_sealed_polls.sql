-- A poll that has closed is sealed before its result is called final: nothing is counted in it from then on.

ALTER TABLE answer_polls ADD COLUMN sealed boolean NOT NULL DEFAULT false;
