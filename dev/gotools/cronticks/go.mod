module caretaker.dev/dev/gotools/cronticks

go 1.26.0

tool caretaker.dev/dev/gotools/cronticks

require github.com/robfig/cron/v3 v3.0.1
